"""Experiments: comparisons of many runs, tuning, the paper's tables and figures, the demo, a toy problem."""
