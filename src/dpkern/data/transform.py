"""The map from stored rows to effective rows, which a model needs to predict.

The effective row of a record consists of the features x, mapped by the public feature range, and
the constant 1 of the intercept, scaled down to the row bound R if it is longer,

    x~ = min(1, R / |v|) v,    v = [scale * x + shift, 1].

Effective rows are not stored: kernels and `Transform` compute them from X on the fly. For sparse X
there is no shift, so that entries that are not stored stay 0.
"""

from __future__ import annotations  # help() then shows type aliases by name

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern import kernels
from dpkern.data.csr import Csr, row_blocks
from dpkern.data.rows import Rows, row_norms
from dpkern.data.validation import (
    Float64Array,
    Matrix,
    blocks,
    numeric_matrix,
    refuse_non_finite,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array


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
    """

    n_features: int
    intercept: bool = False
    row_bound: float = math.inf
    scale: tuple[float, ...] | None = None
    shift: tuple[float, ...] | None = None

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
        if isinstance(checked, Csr) and self.shift is None:
            return self._sparse_rows(checked)
        return self._rows(checked, slice(0, len(checked)))

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
        if isinstance(checked, Csr) and self.shift is None:
            return self._sparse_rows(checked) @ w  # row by row, in the order of their entries
        out = np.empty(len(checked))
        for rows in blocks(len(checked), 8 * self.d):
            kernels.glm_margins(Rows(self._rows(checked, rows)).as_data(), w, out=out[rows])
        return out

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary of JSON types, with None for no row bound."""
        values = asdict(self)
        values["row_bound"] = None if math.isinf(self.row_bound) else self.row_bound
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the transform of a dictionary from `to_dict`, also after a JSON round trip."""
        scale, shift, row_bound = (values[key] for key in ("scale", "shift", "row_bound"))
        return cls(
            n_features=values["n_features"],
            intercept=values["intercept"],
            row_bound=math.inf if row_bound is None else row_bound,
            scale=None if scale is None else tuple(scale),
            shift=None if shift is None else tuple(shift),
        )

    def _check(self, X: ArrayLike) -> NDArray[Any] | Csr:
        checked = numeric_matrix(X)
        if checked.shape[1] != self.n_features:
            raise ValueError(
                f"X must have the {self.n_features} features of the model, got {checked.shape[1]}"
            )
        if isinstance(checked, Csr):
            checked, _ = checked.canonical(checked.dtype, owned=False)
        refuse_non_finite(checked, self.scale, self.shift)
        return checked

    def _rows(self, X: NDArray[Any] | Csr, rows: slice) -> Float64Array:
        """Return dense effective rows by operations that are elementwise or act on single rows."""
        effective = np.zeros((rows.stop - rows.start, self.d))
        features = effective[:, : self.n_features]
        if isinstance(X, Csr):
            row, column, values = X.block(rows)
            features[row, column] = values
        else:
            features[...] = X[rows]
        if self.scale is not None:
            features *= self.scale
        if self.shift is not None:
            features += self.shift
        if self.intercept:
            effective[:, -1] = 1.0
        if math.isfinite(self.row_bound):
            effective *= self._ratio(row_norms(effective))[:, np.newaxis]
        return effective

    def _ratio(self, norms: Float64Array) -> Float64Array:
        """Return min(1, row bound / norm), which is 0 for a norm that overflows."""
        ratio = np.ones(len(norms))
        long = norms > self.row_bound
        ratio[long] = self.row_bound / norms[long]
        return ratio

    def _sparse_rows(self, X: Csr) -> csr_array:
        one = int(self.intercept)
        indptr = X.indptr + one * np.arange(len(X) + 1)
        effective = Csr(np.ones(indptr[-1]), np.empty(indptr[-1], dtype=np.int32), indptr, self.d)
        if one:
            effective.indices[indptr[1:] - 1] = self.n_features
        for rows in row_blocks(X.indptr):
            row, column, values = X.block(rows)
            entries = np.arange(X.indptr[rows.start], X.indptr[rows.stop])
            entries += one * (rows.start + row)
            effective.indices[entries] = column
            effective.data[entries] = values
            if self.scale is not None:
                effective.data[entries] *= np.asarray(self.scale)[column]
        if math.isfinite(self.row_bound):
            ratio = self._ratio(row_norms(effective.to_scipy()))
            for rows in row_blocks(indptr):
                stored = slice(indptr[rows.start], indptr[rows.stop])
                lengths = np.diff(indptr[rows.start : rows.stop + 1])
                effective.data[stored] *= np.repeat(ratio[rows], lengths)
        return effective.to_scipy()
