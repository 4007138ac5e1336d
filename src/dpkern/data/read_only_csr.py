"""The class of `SiloData.X` for sparse data, in a separate module because it imports scipy."""

from typing import Any

import numpy as np
from scipy.sparse import csr_array


class ReadOnlyCsr(csr_array):
    """A csr_array that is immutable while its arrays are read-only.

    scipy would insert a new entry by allocating new arrays. Slices and copies have their own arrays
    and are mutable.
    """

    width_is_read = False

    def __setattr__(self, name: str, value: Any) -> None:
        # Other arrays or another shape would invalidate the row norms, and the clipping with them.
        # scipy's own checks may assign equal arrays of another dtype.
        if name in ("data", "indices", "indptr", "_shape") and self._is_frozen():
            if not np.array_equal(value, getattr(self, name)):
                raise ValueError("assignment destination is read-only")
            return
        super().__setattr__(name, value)

    def _is_frozen(self) -> bool:
        stored = self.__dict__.get("data")
        return stored is not None and not stored.flags.writeable

    def __setitem__(self, key: Any, value: Any) -> None:
        if self._is_frozen():
            raise ValueError("assignment destination is read-only")
        super().__setitem__(key, value)


class UndeclaredWidthCsr(ReadOnlyCsr):
    """Rows whose number of columns is the largest index in them, and those of slices of them."""

    width_is_read = True
