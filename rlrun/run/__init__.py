"""The life of a run: start, resume, finish."""
