"""Benchmarks: each kernel beside its rivals in the same run."""
