"""Archives of arrays, .npz, whose X may be dense or CSR."""

import errno
import math
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpkern._files import refuse_folder
from dpkern.data.validation import Matrix, is_sparse
from dpkern.io.table import Table, canonical_csr, refuse_width

_ARRAYS = ("X", "y", "groups", "person")


def read_arrays(
    path: str | os.PathLike[str], names: Sequence[str], *, compressed: bool = True
) -> dict[str, NDArray[Any]]:
    """Return the arrays of these names that an .npz archive has, without pickle.

    Their stated sizes are compared with what the archive holds before memory is taken for them.

    Raises
    ------
    ValueError
        When the archive is damaged, or a part is no such array, or `compressed` against that.
    """
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in names:
                if f"{name}.npy" not in archive.namelist():
                    continue
                info = archive.getinfo(f"{name}.npy")
                is_whole = info.file_size <= os.path.getsize(path)
                if not compressed and not (is_whole and info.compress_type == zipfile.ZIP_STORED):
                    raise ValueError(f"{name} must not be compressed")
                with archive.open(info) as part:
                    _refuse_size(name, part, info.file_size)
                with archive.open(info) as part:
                    arrays[name] = np.lib.format.read_array(part, allow_pickle=False)
    except OSError as error:
        if error.errno not in (None, errno.EINVAL):  # of a place before the file's begin
            raise
        raise ValueError(f"{path} is damaged or not an .npz archive") from error
    except Exception as error:  # of zipfile, zlib, and of Python's own parser for headers
        raise ValueError(f"{path} is damaged, or not an .npz archive of plain arrays") from error
    return arrays


def _refuse_size(name: str, part: IO[bytes], size: int) -> None:
    """Raise ValueError unless an array of the stated shape fills its part of the archive."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0}
    readers[2, 0] = np.lib.format.read_array_header_2_0
    shape, _, dtype = readers[np.lib.format.read_magic(part)](part)
    if part.tell() + math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"{name} must fill its part of the archive, got the shape {shape}")


def read_npz(path: Path, n_features: int | None, dtype: DTypeLike, labelled: bool) -> Table:
    refuse_folder(path)
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is damaged or not an .npz archive")
    arrays = read_arrays(path, (*_ARRAYS, "format"))
    stored_as = arrays.pop("format", None)
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
    from scipy.sparse import csr_array

    if stored_as != "csr":
        raise ValueError(f"{path} must hold X as 'csr', got {stored_as!r}: save X.tocsr()")
    parts = read_arrays(path, ("data", "indices", "indptr", "shape"))
    try:
        csr = parts["data"], parts["indices"], parts["indptr"]
        return canonical_csr(csr_array(csr, shape=tuple(parts["shape"].tolist())), dtype)
    except (KeyError, TypeError, ValueError):  # whose messages may quote the data
        raise ValueError(f"{path} is damaged, or its arrays are no CSR matrix of numbers") from None
