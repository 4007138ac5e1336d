"""Rows outside of a `SiloData`, in the form that kernels read, and their norms."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from dpkern import kernels

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from dpkern.data import SiloData


@dataclass(frozen=True)
class Rows:
    """Effective rows as one silo, with the attributes of a `SiloData` that kernels read.

    Parameters
    ----------
    X : ndarray or canonical csr_array of shape (n, n_features), float32 or float64
        C-contiguous and aligned, n at least 1.
    """

    X: Any
    scale: None = None
    shift: None = None
    row_norms: None = None
    intercept: bool = False
    row_bound: float = math.inf

    @property
    def m(self) -> int:
        return 1

    @property
    def n(self) -> int:
        return int(self.X.shape[0])

    @property
    def d(self) -> int:
        return int(self.X.shape[1])

    @property
    def y(self) -> NDArray[np.float64]:
        return np.zeros(self.n)

    @property
    def offsets(self) -> NDArray[np.int64]:
        return np.array([0, self.n])

    def as_data(self) -> "SiloData":
        """Return this object under the type that kernels declare."""
        return cast("SiloData", self)


def row_norms(V: "NDArray[Any] | csr_array") -> NDArray[np.float64]:
    """Return upper bounds sqrt(|v|^2 + d 2^-240) of the norms of rows, each from its row alone.

    A record's contribution is scaled by its norm, which therefore must not depend on other records,
    not even in its last bit. The kernel sums each row in an order that depends on its length only;
    ``np.einsum("ij,ij->i", V, V)`` does not beyond 8 192 columns, where its buffer spans several
    rows.

    Parameters
    ----------
    V : ndarray or canonical csr_array of shape (n, d), float32 or float64
        C-contiguous and aligned.

    Returns
    -------
    norms : ndarray of shape (n,), float64
        Infinite where the square overflows, and NaN where a value of the row is NaN.
    """
    if not V.shape[0]:
        return np.empty(0)
    return kernels.glm_norms(Rows(V).as_data(), n_threads=1)
