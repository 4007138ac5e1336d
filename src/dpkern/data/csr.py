"""Validation, canonical format and gathering of CSR rows, without dense copies.

In canonical format the column indices of a row increase strictly, so that no entry is stored twice.
The norm of a row is then that of its stored values, which the clip norm relies on.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MAX_FEATURES = 2**31 - 1  # column indices are int32

_BLOCK_ENTRIES = 1 << 16  # entries, and rows, of a block that fits into the cache


def is_sparse(X: ArrayLike) -> bool:
    """Return whether X is a scipy.sparse matrix or array, without importing scipy."""
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(X))


def row_blocks(indptr: NDArray[Any]) -> Iterator[slice]:
    """Yield slices of whole rows with about _BLOCK_ENTRIES entries; a longer row is one block."""
    n, start = len(indptr) - 1, 0
    while start < n:
        last = np.searchsorted(indptr, int(indptr[start]) + _BLOCK_ENTRIES, side="right") - 1
        stop = min(max(int(last), start + 1), start + _BLOCK_ENTRIES, n)
        yield slice(start, stop)
        start = stop


@dataclass(frozen=True, eq=False)
class Csr:
    """The arrays of a valid CSR matrix, not necessarily in canonical format.

    Attributes
    ----------
    data : ndarray of shape (nnz,), real numbers
    indices : ndarray of shape (nnz,), integers
    indptr : ndarray of shape (n + 1,), int32 or int64
    n_features : int
    """

    data: NDArray[Any]
    indices: NDArray[Any]
    indptr: NDArray[np.int32 | np.int64]
    n_features: int

    @classmethod
    def checked(cls, X: Any) -> Self:
        """Validate X and return its arrays, uncopied except for an indptr of another dtype.

        Raises
        ------
        TypeError
            When X is sparse in another format, or not of real numbers.
        ValueError
            When X is not two-dimensional, has too many columns, or has inconsistent arrays.
        """
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
            for start in range(0, nnz if valid else 0, _BLOCK_ENTRIES):
                part = indices[start : min(start + _BLOCK_ENTRIES, nnz)]
                valid &= bool(part.min() >= 0 and part.max() < n_features)
        if not valid:
            raise ValueError(
                "X must be valid CSR, got indices and indptr that do not fit its shape: see what "
                "X.check_format() says"
            )
        width = np.int32 if indptr.dtype == np.int32 else np.int64
        pointers = np.require(indptr, width, ("C", "A"))
        return cls(data[:nnz], indices[:nnz], pointers, n_features)

    @classmethod
    def joined(cls, parts: Sequence["Csr"], dtype: DTypeLike) -> Self:
        """Return the concatenated rows of all parts, with int32 indices."""
        indptr = np.zeros(1 + sum(len(part) for part in parts), dtype=np.int64)
        np.concatenate([np.diff(part.indptr) for part in parts], out=indptr[1:])
        return cls(
            np.concatenate([part.data for part in parts], dtype=dtype, casting="same_kind"),
            np.concatenate([part.indices for part in parts], dtype=np.int32, casting="same_kind"),
            np.cumsum(indptr, out=indptr),
            parts[0].n_features,
        )

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return len(self), self.n_features

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        return self.data.dtype

    def block(self, rows: slice) -> tuple[NDArray[np.intp], NDArray[Any], NDArray[Any]]:
        """Return row (within the block), column and value of the entries of some rows."""
        lengths = np.diff(self.indptr[rows.start : rows.stop + 1])
        entries = slice(self.indptr[rows.start], self.indptr[rows.stop])
        return (
            np.repeat(np.arange(len(lengths)), lengths),
            self.indices[entries],
            self.data[entries],
        )

    def gather(self, order: NDArray[np.int64], dtype: DTypeLike) -> "Csr":
        """Return a copy of the rows in the given order, with int32 indices."""
        indptr = np.zeros(len(order) + 1, dtype=np.int64)
        for start in range(0, len(order), _BLOCK_ENTRIES):
            chosen = order[start : start + _BLOCK_ENTRIES]
            lengths = self.indptr[chosen + 1] - self.indptr[chosen]
            indptr[start + 1 : start + 1 + len(chosen)] = lengths
        np.cumsum(indptr, out=indptr)
        copy = Csr(
            np.empty(indptr[-1], dtype=dtype),
            np.empty(indptr[-1], dtype=np.int32),
            indptr,
            self.n_features,
        )
        for rows in row_blocks(indptr):
            first, last = indptr[rows.start], indptr[rows.stop]
            shifts = self.indptr[order[rows]] - indptr[rows]
            entries = np.repeat(shifts, np.diff(indptr[rows.start : rows.stop + 1]))
            entries += np.arange(first, last)
            copy.data[first:last] = self.data[entries]
            copy.indices[first:last] = self.indices[entries]
        return copy

    def is_canonical(self) -> bool:
        """Return whether the indices of every row increase strictly."""
        for start in range(1, len(self.indices), _BLOCK_ENTRIES):
            part = self.indices[start - 1 : start + _BLOCK_ENTRIES]
            decreases = start + np.flatnonzero(part[1:] <= part[:-1])
            # Indices may only decrease where a row begins.
            if not np.array_equal(self.indptr[np.searchsorted(self.indptr, decreases)], decreases):
                return False
        return True

    def made_canonical(self) -> "Csr":
        """Sort every row and sum duplicates, overwriting these arrays, which must be own copies."""
        indptr, end = np.zeros_like(self.indptr), 0
        for rows in row_blocks(self.indptr):
            row, column, value = self.block(rows)
            order = np.lexsort((column, row))
            row, column, value = row[order], column[order], value[order]
            new = np.ones(len(row), dtype=np.bool_)
            new[1:] = (row[1:] != row[:-1]) | (column[1:] != column[:-1])
            first = np.flatnonzero(new)
            # Writes never overtake reads.
            with np.errstate(over="ignore"):  # non-finite values raise later
                self.data[end : end + len(first)] = np.add.reduceat(value, first)
            self.indices[end : end + len(first)] = column[first]
            lengths = np.bincount(row[first], minlength=rows.stop - rows.start)
            indptr[rows.start + 1 : rows.stop + 1] = end + np.cumsum(lengths)
            end += len(first)
        return Csr(self.data[:end], self.indices[:end], indptr, self.n_features)

    def canonical(self, dtype: DTypeLike, *, owned: bool) -> tuple["Csr", bool]:
        """Return canonical rows with int32 indices, and whether their arrays are own copies.

        Values or indices are copied only if they must change.
        """
        if not self.is_canonical():
            own = self if owned else Csr.joined([self], dtype)
            return own.made_canonical(), True
        if owned:
            return self, True
        data = np.require(self.data, dtype, ("C", "A"))
        indices = np.require(self.indices, np.int32, ("C", "A"))
        return Csr(data, indices, self.indptr, self.n_features), False

    def to_scipy(self) -> "csr_array":
        """Return canonical rows as a scipy.sparse.csr_array of the same arrays."""
        from dpkern.data.read_only_csr import ReadOnlyCsr

        X = ReadOnlyCsr(self.shape, dtype=self.dtype)
        # The constructor would convert indices and indptr to one dtype.
        X.indices, X.indptr, X.data = self.indices, self.indptr, self.data
        X.has_canonical_format = True
        return X
