"""Samples of records, silos and users, and what the secrecy of samples adds to a guarantee."""
