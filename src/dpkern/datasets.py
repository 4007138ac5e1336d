"""The Wisconsin diagnostic set with declared public feature ranges."""

from typing import Any

import numpy as np

from dpkern.data import SiloData
from dpkern.data.partition import How, Seed
from dpkern.data.validation import Float64Array
from dpkern.io import Table

__all__ = ["load_wisconsin", "wisconsin_feature_range", "wisconsin_table"]

# The Wisconsin diagnostic set. Bounds are the minimum and maximum columns of the summary statistics
# printed in scikit-learn's description of the set (sklearn.datasets.load_breast_cancer, "Summary
# Statistics"; the set itself is doi 10.24432/C5DW2B), rounded outward to round numbers by hand.
# They are published numbers, written here once; nothing is computed from the records at run time.
_WISCONSIN_RANGES: dict[str, tuple[float, float]] = {
    "mean radius": (5.0, 30.0),
    "mean texture": (5.0, 40.0),
    "mean perimeter": (40.0, 200.0),
    "mean area": (100.0, 3000.0),
    "mean smoothness": (0.05, 0.2),
    "mean compactness": (0.0, 0.4),
    "mean concavity": (0.0, 0.5),
    "mean concave points": (0.0, 0.25),
    "mean symmetry": (0.1, 0.4),
    "mean fractal dimension": (0.04, 0.1),
    "radius error": (0.0, 3.0),
    "texture error": (0.0, 5.0),
    "perimeter error": (0.0, 25.0),
    "area error": (0.0, 600.0),
    "smoothness error": (0.0, 0.04),
    "compactness error": (0.0, 0.15),
    "concavity error": (0.0, 0.4),
    "concave points error": (0.0, 0.06),
    "symmetry error": (0.0, 0.08),
    "fractal dimension error": (0.0, 0.03),
    "worst radius": (5.0, 40.0),
    "worst texture": (10.0, 50.0),
    "worst perimeter": (50.0, 300.0),
    "worst area": (100.0, 5000.0),
    "worst smoothness": (0.05, 0.25),
    "worst compactness": (0.0, 1.2),
    "worst concavity": (0.0, 1.5),
    "worst concave points": (0.0, 0.3),
    "worst symmetry": (0.1, 0.7),
    "worst fractal dimension": (0.05, 0.25),
}


def wisconsin_feature_range() -> tuple[Float64Array, Float64Array]:
    """Return the declared public bounds (lo, hi) of the 30 features, each of shape (30,)."""
    lo, hi = np.array(list(_WISCONSIN_RANGES.values())).T
    return lo.copy(), hi.copy()


def wisconsin_table() -> Table:
    """Return the Wisconsin diagnostic set: 569 x 30, label 0 malignant and 1 benign.

    It is scikit-learn's copy; nothing is downloaded.
    """
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    return Table(np.ascontiguousarray(X), y.astype(np.int64), None, tuple(_WISCONSIN_RANGES))


def load_wisconsin(*, m: int = 8, how: How = "even", seed: Seed = 0, **options: Any) -> SiloData:
    """The Wisconsin diagnostic set, split over silos, with its declared public feature ranges.

    Parameters
    ----------
    m : int, default=8
        Number of silos.
    how : str, default="even"
        See `SiloData.split`.
    seed : int, numpy.random.Generator or None, default=0
        Randomness of the split.
    **options
        Further arguments of `SiloData.split`, such as ``intercept`` and ``row_bound``.

    Returns
    -------
    SiloData
        569 records, 30 features mapped to [-1, 1]. The classes are 1, benign (357 records), and 0,
        malignant (212), which `y` holds as +1 and -1; `score` takes the classes.
    """
    table = wisconsin_table()
    options.setdefault("feature_range", wisconsin_feature_range())
    if options.get("task") in (None, "classification"):
        options.setdefault("classes", (0, 1))
    return SiloData.split(table.X, table.y, m, how=how, seed=seed, **options)
