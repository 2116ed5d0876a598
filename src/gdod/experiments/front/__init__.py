"""The front of weighted sums: what task weights alone can reach, and where methods lie relative to it."""
