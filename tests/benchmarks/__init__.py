"""Benchmarks: whole runs, parts, and what they cost beside other libraries."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is loaded; a run has it too
