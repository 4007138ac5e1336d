"""Readers of data files."""

from dpkern.io.arrow import read_parquet
from dpkern.io.csv_text import read_frame
from dpkern.io.npz import read_arrays
from dpkern.io.reading import read_feature_range, read_records, read_table
from dpkern.io.table import Table

__all__ = [
    "Table",
    "read_arrays",
    "read_feature_range",
    "read_frame",
    "read_parquet",
    "read_records",
    "read_table",
]
