"""Validation and canonical format of CSR rows, without dense copies.

In canonical format the column indices of a row increase strictly, so that no entry is stored twice.
The norm of a row is then that of its stored values, which the clip norm relies on.
"""

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MAX_FEATURES = 2**31 - 1  # column indices are int32


def is_sparse(X: ArrayLike) -> bool:
    """Return whether X is a scipy.sparse matrix or array, without importing scipy."""
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(X))


def has_width_read(X: Any) -> bool:
    """Return whether a reader has found the number of columns of X in the records."""
    return getattr(X, "width_is_read", False)


def csr_of(
    data: NDArray[Any],
    indices: NDArray[Any],
    indptr: NDArray[Any],
    shape: tuple[int, int],
    *,
    width_is_read: bool = False,
) -> "csr_array":
    """Return a matrix of these very arrays, whose format is not known to be canonical.

    The constructor of scipy would convert indices and indptr to one dtype. `width_is_read` says
    that the number of columns is the largest index in the records.
    """
    from dpkern.data.read_only_csr import ReadOnlyCsr, UndeclaredWidthCsr

    X = (UndeclaredWidthCsr if width_is_read else ReadOnlyCsr)(shape, dtype=data.dtype)
    X.indices, X.indptr, X.data = indices, indptr, data
    return X


def checked_csr(X: Any) -> "csr_array":
    """Validate X and return its arrays, uncopied except for an indptr of another dtype."""
    if X.format != "csr":
        raise TypeError(f"sparse X must be CSR, got a {type(X).__name__}: pass X.tocsr()")
    if X.dtype.kind not in "fiub":
        raise TypeError(f"X must be real numbers, got dtype {X.dtype}")
    if len(X.shape) != 2:
        raise ValueError(f"X must have shape (n, n_features), got {X.shape}")
    n, n_features = X.shape
    if n_features > MAX_FEATURES:
        raise ValueError(f"X must have at most {MAX_FEATURES} features, got {n_features}")
    data, indices, indptr = (np.asarray(a) for a in (X.data, X.indices, X.indptr))
    # scipy does not validate the arrays it is given, and the kernels rely on this.
    valid = indptr.shape == (n + 1,) and data.ndim == indices.ndim == 1
    valid = valid and indptr.dtype.kind == indices.dtype.kind == "i" and indptr[0] == 0
    valid = valid and bool(np.all(indptr[1:] >= indptr[:-1]))
    if valid:
        nnz = int(indptr[-1])
        valid = nnz <= min(len(data), len(indices))
        data, indices = data[:nnz], indices[:nnz]
        valid = valid and (nnz == 0 or (indices.min() >= 0 and indices.max() < n_features))
    if not valid:
        raise ValueError(
            "X must be valid CSR, got indices and indptr that do not fit its shape: see what "
            "X.check_format() says"
        )
    width = np.int32 if indptr.dtype == np.int32 else np.int64
    indptr = np.require(indptr, width, ("C", "A"))
    return csr_of(data, indices, indptr, (n, n_features), width_is_read=has_width_read(X))


def canonical(X: "csr_array", dtype: DTypeLike, *, owned: bool) -> tuple["csr_array", bool]:
    """Return rows in canonical format with int32 indices, and whether their arrays are own copies.

    X is new, so that it carries no flag of a caller's. Its arrays are overwritten if they are
    `owned`, and copied only if they must change otherwise.
    """
    if not X.has_canonical_format:
        X = X.astype(dtype, copy=not owned)
        X.sum_duplicates()
        owned = True
    data = np.require(X.data, dtype, ("C", "A"))
    indices = np.require(X.indices, np.int32, ("C", "A"))
    width_is_read = has_width_read(X)
    return csr_of(data, indices, X.indptr, X.shape, width_is_read=width_is_read), owned
