"""The class of `SiloData.X` for sparse data; a module of its own because it imports scipy."""

from typing import Any

from scipy.sparse import csr_array


class ReadOnlyCsr(csr_array):
    """A csr_array that cannot be assigned to while its arrays are read-only.

    scipy would put an entry that is not stored yet into new arrays. Slices and copies have arrays
    of their own, and can be assigned to.
    """

    def __setitem__(self, key: Any, value: Any) -> None:
        if not self.data.flags.writeable:
            raise ValueError("assignment destination is read-only")
        super().__setitem__(key, value)
