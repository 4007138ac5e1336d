"""Records held by silos, and the map from stored rows to effective rows.

`Schema` describes a raw table and encodes it, `SiloData` holds the records, `Transform` is stored
with a model to predict, and `train_test_split` divides records before they are assigned to silos.
"""

from dpkern.data.column import Column
from dpkern.data.derived import Derived
from dpkern.data.partition import train_test_split
from dpkern.data.schema import OutsideWarning, Schema
from dpkern.data.silo_data import SiloData
from dpkern.data.transform import Transform, row_norms
from dpkern.data.validation import ScaleWarning, is_sparse

__all__ = [
    "Column",
    "Derived",
    "OutsideWarning",
    "ScaleWarning",
    "Schema",
    "SiloData",
    "Transform",
    "is_sparse",
    "row_norms",
    "train_test_split",
]
