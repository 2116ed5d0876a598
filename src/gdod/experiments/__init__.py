"""Comparisons of many runs: the runner, tuning, statistics."""
