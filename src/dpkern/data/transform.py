"""The map from stored rows to effective rows, which a model needs to predict.

The effective row of a record consists of the features x, mapped by the public feature range, and
the constant 1 of the intercept, scaled down to the row bound R if it is longer,

    x~ = min(1, R / |v|) v,    v = [scale * x + shift, 1].

Effective rows are not stored: kernels and `Transform` compute them from X on the fly. For sparse X
there is no shift, so that entries that are not stored stay 0.
"""

from __future__ import annotations  # help() then shows type aliases by name

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike

from dpkern import kernels
from dpkern.data.labels import BESIDE_ROWS
from dpkern.data.validation import (
    Float64Array,
    Matrix,
    blocks,
    canonical,
    float_dtype,
    is_sparse,
    numeric_matrix,
    refuse_non_finite,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from dpkern.data import SiloData


@dataclass(frozen=True, slots=True)
class Transform:
    """The map from a row of X to its effective row, which is stored with a model.

    Parameters
    ----------
    n_features : int
        Number of columns of X.
    intercept : bool, default=False
        Whether a constant 1 follows the features.
    row_bound : float, default=inf
        Rows of larger norm, constant included, are scaled down to it.
    scale, shift : tuple of n_features floats, optional
        The affine map of the features: both, the scale alone, or neither.
    target_middle : float, default=0.0
        What was subtracted from the targets of a regression, and predictions add.
    """

    n_features: int
    intercept: bool = False
    row_bound: float = math.inf
    scale: tuple[float, ...] | None = None
    shift: tuple[float, ...] | None = None
    target_middle: float = 0.0

    @property
    def d(self) -> int:
        """Length of an effective row, and of w."""
        return self.n_features + self.intercept

    def apply(self, X: ArrayLike) -> Matrix:
        """Return the effective rows of X.

        Parameters
        ----------
        X : array_like or CSR matrix of shape (n, n_features)
            Real and finite, of any numeric dtype.

        Returns
        -------
        ndarray of shape (n, d), float64
            The effective rows; a csr_array if X is sparse and there is no shift.

        Raises
        ------
        TypeError
            When X is not numeric, or sparse in another format than CSR.
        ValueError
            When X has another shape, or holds non-finite values (before or after the map).
        """
        checked = self._check(X)
        if is_sparse(checked) and self.shift is None:
            return self._sparse_rows(checked)
        return self._rows(checked)

    def margins(self, X: ArrayLike, w: ArrayLike) -> Float64Array:
        """Return the products of the effective rows with w, each from its row alone.

        Parameters
        ----------
        X : array_like or CSR matrix of shape (n, n_features)
        w : array_like of shape (d,)

        Returns
        -------
        ndarray of shape (n,), float64

        Raises
        ------
        TypeError, ValueError
            As for `apply`, and when w does not have d entries.
        """
        checked = self._check(X)
        w = np.asarray(w, dtype=np.float64)
        if w.shape != (self.d,):
            raise ValueError(f"w must have shape ({self.d},), got {w.shape}")
        if is_sparse(checked) and self.shift is None:
            return self._sparse_rows(checked) @ w  # row by row, in the order of their entries
        out = np.empty(checked.shape[0])
        for rows in blocks(len(out), 8 * self.d):
            kernels.glm_margins(one_silo(self._rows(checked[rows])), w, out=out[rows])
        return out

    @classmethod
    def of_fields(cls, values: dict[str, Any]) -> Self:
        """Return the transform of the fields that JSON holds, lists in the place of tuples."""
        maps = {name: values[name] for name in ("scale", "shift")}
        return cls(**values | {k: None if v is None else tuple(v) for k, v in maps.items()})

    def _check(self, X: ArrayLike) -> Any:
        checked: Any = numeric_matrix(X)
        if checked.shape[1] != self.n_features:
            raise ValueError(
                f"X must have the {self.n_features} features of the model, got {checked.shape[1]}"
            )
        if is_sparse(checked):
            checked, _ = canonical(checked, float_dtype(checked), owned=False)
        refuse_non_finite(checked, self.scale, self.shift)
        return checked

    def _rows(self, X: Any) -> Float64Array:
        """Return dense effective rows by operations that are elementwise or act on single rows."""
        effective = np.zeros((X.shape[0], self.d))
        features = effective[:, : self.n_features]
        features[...] = X.toarray() if is_sparse(X) else X
        if self.scale is not None:
            features *= self.scale
        if self.shift is not None:
            features += self.shift
        if self.intercept:
            effective[:, -1] = 1.0
        if math.isfinite(self.row_bound):
            effective *= self._ratio(row_norms(effective))[:, np.newaxis]
        return effective

    def _sparse_rows(self, X: Any) -> csr_array:
        from scipy.sparse import hstack

        effective = X.astype(np.float64)
        if self.scale is not None:
            effective.data *= np.asarray(self.scale)[effective.indices]
        if self.intercept:
            effective = hstack([effective, np.ones((X.shape[0], 1))], format="csr")
        effective, _ = canonical(effective, np.float64, owned=True)
        if math.isfinite(self.row_bound):
            ratio = self._ratio(row_norms(effective))
            effective.data *= np.repeat(ratio, np.diff(effective.indptr))
        return effective

    def _ratio(self, norms: Float64Array) -> Float64Array:
        """Return min(1, row bound / norm), which is 0 for a norm that overflows."""
        with np.errstate(over="ignore"):  # by short rows; no norm is 0
            return np.minimum(1.0, self.row_bound / norms)


def one_silo(X: Matrix, **values: Any) -> SiloData:
    """Return effective rows as one silo, with the attributes of a `SiloData` that kernels read.

    X is an ndarray or a canonical csr_array of float32 or float64 with at least one row,
    C-contiguous and aligned. `values` are labels, weights or offsets of these records, or others of
    the attributes.
    """
    n, d = X.shape
    whole = {"m": 1, "n": n, "d": d, "y": np.zeros(n), "offsets": np.array([0, n])}
    unmapped = {"scale": None, "shift": None, "intercept": False, "row_bound": math.inf}
    beside = {**dict.fromkeys(BESIDE_ROWS), **values}
    return cast("SiloData", SimpleNamespace(X=X, **whole | unmapped | beside))


def row_norms(V: Matrix) -> Float64Array:
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
    return kernels.glm_norms(one_silo(V), n_threads=1)
