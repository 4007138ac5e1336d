"""Copies of records in the order of their silos."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpkern.data.csr import Csr
from dpkern.data.validation import FLOATS, Matrix, aligned, blocks


def gathered(X: NDArray[Any] | Csr, order: NDArray[np.int64] | None) -> tuple[Matrix, bool]:
    """Return the rows of X in the given order, float32 or float64, and whether they are a copy."""
    dtype = X.dtype if X.dtype in FLOATS else np.dtype(np.float64)
    if order is not None and np.array_equal(order, np.arange(len(X))):
        order = None
    if isinstance(X, Csr):
        rows = X if order is None else X.gather(order, dtype)
        rows, copied = rows.canonical(dtype, owned=order is not None)
        return rows.to_scipy(), copied
    if order is None:
        out = np.ascontiguousarray(X, dtype)
        return out, not np.may_share_memory(out, X)
    out = aligned(X.shape, dtype)
    for block in blocks(len(X), dtype.itemsize * X.shape[1]):
        out[block] = X[order[block]]
    return out, True


def joined(parts: list[NDArray[Any] | Csr]) -> Matrix:
    """Return the concatenated rows of sparse or dense parts, float32 if all parts are."""
    single = all(X.dtype == np.float32 for X in parts)
    dtype = np.dtype(np.float32 if single else np.float64)
    sparse = [X for X in parts if isinstance(X, Csr)]
    if sparse:
        return Csr.joined(sparse, dtype).canonical(dtype, owned=True)[0].to_scipy()
    dense = [X for X in parts if isinstance(X, np.ndarray)]
    out = aligned((sum(len(X) for X in dense), dense[0].shape[1]), dtype)
    return np.concatenate(dense, out=out, casting="same_kind")
