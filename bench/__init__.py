"""Benchmarks: each kernel beside its rivals in the same run."""

import os

# OpenBLAS's threads spin for 2^28 cycles after a call, a tenth of a second in which whoever is
# timed next has a core less. 2^20 cycles are enough to find them awake at a next call. They read
# this when NumPy is imported.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
