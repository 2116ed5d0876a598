"""A run's predictions over HTTP, for `gdod serve`."""
