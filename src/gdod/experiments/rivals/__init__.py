"""Rivals of our models in a comparison: boosted trees, one model a task, on the same rows."""
