"""Models beyond generalised linear ones: what the stochastic solvers need to know of them.

Wherever a solver takes ``loss="logistic"`` for a linear model, the stochastic ones also take an
`Oracle`: `MLP`, whose clipped sums are kernels, or a model of the user's own that gives the
gradient of each record.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpkern._numbers import count

if TYPE_CHECKING:
    from dpkern.data import SiloData

FloatArray = NDArray[np.float64]


class Oracle(ABC):
    """A model with P parameters w, and the loss of a record (x, y) under it.

    A subclass gives `dim` and `gradients`, and what of the rest it is to be used for: `losses` for
    ``monitor=``, `outputs` for predictions.

    Attributes
    ----------
    name : str
        For results and certificates.
    smoothness : float
        A bound of |g(w) - g(v)| / |w - v| for the gradient g of any one record; infinite where none
        is known. Solvers choose steps and clip norms by it, no guarantee rests on it.

    Notes
    -----
    What a guarantee does rest on, and certificates name: the gradient of a record is a function of
    this record, of its place in the batch and of public numbers, not of the other records. Batch
    normalisation breaks that. Where samples are secret or records are added or removed neighbours
    differ in the places of other records too: there it must not depend on the place, either, not in
    its last bit, as a product of matrices by BLAS may. `check_gradients` looks for such a thing.
    """

    name: ClassVar[str] = "oracle"
    smoothness: float = math.inf

    @abstractmethod
    def dim(self, data: "SiloData") -> int:
        """Number of parameters P."""

    @abstractmethod
    def gradients(self, w: FloatArray, X: NDArray[Any], y: FloatArray) -> Any:
        """The gradient of the loss of each record.

        Parameters
        ----------
        w : ndarray, shape (P,), float64
        X : ndarray, shape (k, n_features)
            Rows after feature range and row bound; as they are stored where the data have neither,
            and CSR where the data are sparse.
        y : ndarray, shape (k,), float64
            As `SiloData` holds them: -1 and +1 for two labels, the place in `classes` for several
            (so index with ``y.astype(int)``), targets for regression.

        Returns
        -------
        array, shape (k, P)
            Float32 or float64, of NumPy or of a library with DLPack. Not clipped.
        """

    def start(self, data: "SiloData") -> FloatArray:
        """Where runs begin, shape (P,): public, so not computed from the records. 0 by default."""
        return np.zeros(self.dim(data))

    def losses(self, w: FloatArray, X: NDArray[Any], y: FloatArray) -> FloatArray:
        """The loss of each record, shape (k,)."""
        raise NotImplementedError(f"{type(self).__name__} has no losses")

    def outputs(self, w: FloatArray, X: NDArray[Any]) -> FloatArray:
        """A margin or value for each row, shape (k,), or a score of every class, shape (k, K)."""
        raise NotImplementedError(f"{type(self).__name__} has no outputs: it cannot predict")

    @property
    def declaration(self) -> dict[str, Any]:
        """Name and parameters, as results and certificates keep them."""
        return {"name": self.name}


def record_gradients(
    oracle: Oracle, data: "SiloData", w: FloatArray, records: NDArray[np.int64]
) -> NDArray[Any]:
    """The gradients of some records at w as the solvers take them.

    Parameters
    ----------
    oracle : Oracle
    data : SiloData
    w : ndarray, shape (P,), float64
    records : ndarray, shape (k,), int64
        Numbers of records.

    Returns
    -------
    gradients : ndarray, shape (k, P), float32 or float64
        C-contiguous. Not clipped.

    Raises
    ------
    TypeError, ValueError
        When the oracle returns something else than one row per record.
    """
    X, transform = data.X[records], data.transform
    if math.isfinite(transform.row_bound) or transform.scale is not None:
        X = transform.apply(X)
    found = oracle.gradients(w, X, data.y[records])
    if not (hasattr(found, "__array__") or hasattr(found, "__dlpack__")):
        raise TypeError(
            f"gradients of {oracle.name!r} must be an array of NumPy or of a library with DLPack, "
            f"got {type(found).__name__}"
        )
    array = np.asarray(found) if hasattr(found, "__array__") else np.from_dlpack(found)
    if array.shape != (len(records), w.size):  # the number of records may be secret
        raise ValueError(
            f"gradients of {oracle.name!r} must have one row per record and {w.size} columns, one "
            f"per parameter; rows had shape {array.shape[1:]}"
        )
    return np.ascontiguousarray(array, np.float32 if array.dtype == np.float32 else np.float64)


def check_gradients(
    oracle: Oracle,
    data: "SiloData",
    w: FloatArray | None = None,
    *,
    trials: int = 100,
    rng: np.random.Generator | int | None = 0,
) -> None:
    """Raise where the gradient of a record is seen to depend on other records or on its place.

    The gradients of up to 256 records are compared, bit by bit, with those of the same records
    each by itself, in pairs, in random subsets and in random orders. Passing is evidence and no
    proof: a dependence may need other numbers of records or other values to show.

    Parameters
    ----------
    oracle : Oracle
    data : SiloData
        Public or synthetic records, since the outcome is a function of them, but as those to train
        on in number of features, dtype, layout, feature range and row bound: libraries sum wide
        rows (``np.einsum`` those of more than 8 192 entries) and large batches in other ways
        than small ones.
    w : ndarray, shape (P,), optional
        Where to compare; the default is the start of `oracle` with normal noise of deviation 0.1
        added, since much vanishes at 0.
    trials : int, default=100
        Arrangements that are tried of each kind.
    rng : numpy.random.Generator, int or None, default=0
        Choice of records and arrangements.

    Raises
    ------
    TypeError, ValueError
        When a gradient is found to differ, or `gradients` returns what solvers refuse.
    """
    trials, generator = count("trials", trials), np.random.default_rng(rng)
    if w is None:
        start = oracle.start(data)
        w = start + 0.1 * generator.standard_normal(start.shape)
    chosen = generator.permutation(data.n)[:256]
    n = len(chosen)
    reference = record_gradients(oracle, data, w, chosen)
    arrangements = {
        "by itself": lambda: generator.integers(n, size=1),
        "in a pair": lambda: generator.permutation(n)[:2],
        "in a part of the records": lambda: np.sort(
            generator.permutation(n)[: generator.integers(1, n, endpoint=True)]
        ),
        "in another order": lambda: generator.permutation(n),
    }
    for name, places_of in arrangements.items():
        for _ in range(trials):
            places = places_of()
            found = record_gradients(oracle, data, w, chosen[places])
            if not np.array_equal(found, reference[places], equal_nan=True):
                raise ValueError(
                    f"gradients of {oracle.name!r} must depend on their own record alone, got "
                    f"others for a record {name}"
                )


@dataclass(frozen=True)
class NotKept(Oracle):
    """A user's own model in a file: its name and declaration, not its code.

    Parameters
    ----------
    declared : dict
        Its declaration.
    """

    declared: dict[str, Any]

    def dim(self, data: "SiloData") -> int:
        raise self._error()

    def gradients(self, w: FloatArray, X: NDArray[Any], y: FloatArray) -> FloatArray:
        raise self._error()

    def outputs(self, w: FloatArray, X: NDArray[Any]) -> FloatArray:
        raise self._error()

    @property
    def declaration(self) -> dict[str, Any]:
        return self.declared

    def _error(self) -> ValueError:
        return ValueError(
            f"the model {self.declared.get('name')!r} is the user's own, which a file does not "
            "hold: give the parameters `w` of this result to its outputs"
        )
