"""Archives of arrays, .npz, whose X may be dense or CSR."""

import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from dpkern.data.csr import is_sparse
from dpkern.data.validation import Matrix
from dpkern.io.table import Table, canonical_csr, refuse_width

_ARRAYS = ("X", "y", "groups", "person")


def read_npz(path: Path, n_features: int | None, dtype: DTypeLike, labelled: bool) -> Table:
    path.stat()
    if not path.is_dir() and not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is damaged or not an .npz archive")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in _ARRAYS if name in archive}
            stored_as = archive.get("format")
    except (ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged, or not an .npz archive of plain arrays") from error
    if "X" not in arrays and stored_as is not None:
        arrays["X"] = _read_csr(path, str(stored_as.astype(str)), dtype)
    needed = ("X", "y") if labelled else ("X",)
    missing = [name for name in needed if name not in arrays]
    if missing:
        raise ValueError(
            f"{path} must hold {' and '.join(needed)}, got no array {' and '.join(missing)}; the "
            "arrays of scipy.sparse.save_npz may take the place of X"
        )
    X = arrays["X"]
    if X.dtype.kind not in "fiub" or X.ndim != 2:
        raise ValueError(
            f"{path}: X must be numbers of shape (N, p), got dtype {X.dtype} and shape {X.shape}"
        )
    for name in _ARRAYS[1:]:
        if name in arrays and arrays[name].shape != X.shape[:1]:
            raise ValueError(
                f"{path}: {name} must have shape ({X.shape[0]},), one per row of X, got "
                f"{arrays[name].shape}"
            )
    refuse_width(path, X.shape[1], n_features)
    y = arrays.get("y", np.empty(0))
    rows = X if is_sparse(X) else np.ascontiguousarray(X, dtype)
    return Table(rows, y, arrays.get("groups"), person=arrays.get("person"))


def _read_csr(path: Path, stored_as: str, dtype: DTypeLike) -> Matrix:
    from scipy.sparse import load_npz

    if stored_as != "csr":
        raise ValueError(f"{path} must hold X as 'csr', got {stored_as!r}: save X.tocsr()")
    try:
        return canonical_csr(load_npz(path), dtype)
    except (KeyError, TypeError, ValueError):  # whose messages may quote the data
        raise ValueError(f"{path} is damaged, or its arrays are no CSR matrix of numbers") from None
