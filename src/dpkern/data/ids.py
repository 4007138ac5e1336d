"""Names of silos and persons, which must not be taken for one another."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern._numbers import counted
from dpkern.data.labels import labels


def most_exact(dtype: np.dtype[Any]) -> float:
    """Return the number from which on floats of the dtype do not tell whole numbers apart."""
    return float(2.0 ** (np.finfo(dtype).nmant + 1))


def ids(values: ArrayLike, n: int, name: str) -> NDArray[Any]:
    """Return names of silos or persons; refuse floats that may stand for several of them."""
    found = labels(values, n, name)
    if found.dtype.kind == "f":
        joined = int(np.count_nonzero(np.abs(found) >= most_exact(found.dtype)))
        if joined:
            raise ValueError(
                f"{name} must be text or integers where floats do not tell them apart, got "
                f"{counted(joined, 'float')} of {most_exact(found.dtype):.0f} or more in {n} "
                "records: read the column as text"
            )
    return found
