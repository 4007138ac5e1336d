"""Models other than generalised linear ones, for the stochastic solvers.

Instead of a loss of a linear model, the stochastic solvers also accept an `Oracle` as ``model=``:
`MLP`, whose clipped sums are compiled kernels, or a user's own model that returns the gradient of
each record.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dpkern._numbers import count
from dpkern._typing import FloatArray
from dpkern.kernels._card import device_of, on_its_card, to_cpu
from dpkern.models.scale import Scale

if TYPE_CHECKING:
    from dpkern.data import SiloData


class Oracle(ABC):
    """A model with P parameters w, and its loss of a record (x, y).

    A subclass defines `dim` and `gradients`, and optionally `losses`, for ``monitor=``, and
    `outputs`, for predictions.

    Attributes
    ----------
    name : str
        Name in results and certificates.
    smoothness : float
        A bound of |g(w) - g(v)| / |w - v| for the gradient g of any record; infinite if unknown.
        Solvers use it for step sizes and clip norms; no guarantee relies on it.
    chunk_bytes : int
        Memory for gradients: so many records are asked for at once as have gradients of this size
        with 8 bytes a number. On a card, which needs many records to be fast, more is better.

    Notes
    -----
    Guarantees rely on an assumption that certificates state: the gradient of a record is a function
    of this record, of its position in the batch and of public numbers, not of other records. Batch
    normalisation violates it. With secret samples or add/remove neighbours, the positions of other
    records differ too: the gradient must then be independent of the position, to the last bit,
    which a matrix product by BLAS may not be. `check_gradients` searches for violations.
    """

    name: str = "oracle"
    smoothness: float = math.inf
    chunk_bytes: int = 1 << 25
    #: Whether its sums are those of a kernel, whose terms depend on their own record alone.
    compiled: bool = False
    #: Whether these read weights and margin offsets.
    reads_weights: bool = False

    @abstractmethod
    def dim(self, data: "SiloData") -> int:
        """Return the number of parameters P."""

    @abstractmethod
    def gradients(self, w: FloatArray, X: NDArray[Any], y: FloatArray) -> Any:
        """Return the gradient of the loss of each record.

        Parameters
        ----------
        w : ndarray, shape (P,), float64
            The parameters.
        X : ndarray, shape (k, n_features)
            Effective rows, after feature range and row bound; in the dtype of the data if they have
            neither, and CSR if the data are sparse.
        y : ndarray, shape (k,), float64
            Labels as in `SiloData`: -1 and +1 for two labels, the index in `classes` for several
            (so index with ``y.astype(int)``), targets for regression.

        Returns
        -------
        array, shape (k, P)
            Unclipped gradients, float32 or float64, of NumPy or of a library with DLPack. Those on
            an NVIDIA card are clipped and summed there (docs/gpu.md).
        """

    def start(self, data: "SiloData") -> FloatArray:
        """Return the public starting point of runs, shape (P,), by default 0."""
        return np.zeros(self.dim(data))

    def stated_for(self, data: "SiloData") -> "Oracle":
        """Return the model with what it leaves to public numbers of the data, by default itself."""
        return self

    def n_unpenalized(self, data: "SiloData") -> int:
        """Return how many of the last parameters have no penalty, by default none."""
        return 0

    def scale(self, data: "SiloData") -> Scale | None:
        """Return the sizes of its derivatives for settings "auto"; None, if it cannot say."""
        return None

    def losses(self, w: FloatArray, X: NDArray[Any], y: FloatArray) -> FloatArray:
        """Return the loss of each record, shape (k,)."""
        raise NotImplementedError(f"{type(self).__name__} has no losses")

    def outputs(self, w: FloatArray, X: NDArray[Any]) -> FloatArray:
        """Return a margin or value per row, shape (k,), or scores of K classes, shape (k, K)."""
        raise NotImplementedError(f"{type(self).__name__} has no outputs: it cannot predict")

    @property
    def declaration(self) -> dict[str, Any]:
        """Name and parameters, for results and certificates."""
        return {"name": self.name}


def record_gradients(
    oracle: Oracle,
    data: "SiloData",
    w: FloatArray,
    records: NDArray[np.int64],
    *,
    on_card: bool = False,
) -> Any:
    """Return validated gradients at w, (k, P) and unclipped, of the records with these indices.

    Those of a model that reads weights are times the weights of the records. With `on_card` those
    that lie on a card stay there, as arrays of CuPy.
    """
    with np.errstate(all="ignore"):  # what is raised or warned of depends on the records
        X = effective_rows(data, records)
        # A copy: what a model writes to it must not reach the public iterate.
        found = oracle.gradients(w.copy(), X, data.y[records])
        found = checked_gradients(oracle, found, len(records), w.size, on_card=on_card)
        return _weighted(data, records, found)


def _weighted(data: "SiloData", records: NDArray[np.int64], gradients: Any) -> Any:
    """Return gradients times the weights of their records."""
    if data.record_weight is None:
        return gradients
    return data.record_weight[records, np.newaxis] * gradients


def effective_rows(data: "SiloData", records: NDArray[np.int64]) -> Any:
    """Return the rows with these indices as models see them."""
    X, transform = data.X[records], data.transform
    if math.isfinite(transform.row_bound) or transform.scale is not None:
        X = transform.apply(X)
    return X


def checked_gradients(
    oracle: Oracle, found: Any, k: int, size: int, *, on_card: bool = False
) -> Any:
    """Return a model's gradients of k records as an array (k, size) of float32 or float64."""
    if not (hasattr(found, "__array__") or hasattr(found, "__dlpack__")):
        raise TypeError(
            f"gradients of {oracle.name!r} must be an array of NumPy or of a library with DLPack, "
            f"got {type(found).__name__}"
        )
    is_on_card = device_of(found) is not None
    if is_on_card:
        array = on_its_card(f"gradients of {oracle.name!r}", found)
    else:
        array = np.asarray(found) if hasattr(found, "__array__") else np.from_dlpack(found)
    if array.shape != (k, size):  # the number of records may be secret
        raise ValueError(
            f"gradients of {oracle.name!r} must have one row per record and {size} columns, one "
            f"per parameter; rows had shape {array.shape[1:]}"
        )
    if is_on_card and on_card:
        return array
    array = to_cpu(array) if is_on_card else array
    return np.ascontiguousarray(array, np.float32 if array.dtype == np.float32 else np.float64)


def check_gradients(
    oracle: Oracle,
    data: "SiloData",
    w: FloatArray | None = None,
    *,
    trials: int = 100,
    rng: np.random.Generator | int | None = 0,
) -> None:
    """Raise if the gradient of a record depends on other records or on its position.

    The gradients of up to 256 records are compared, bit by bit, with those of the same records
    alone, in pairs, in random subsets and orders, beside copies of one another, and where the
    others are changed: rows scaled, some to zero, and labels exchanged. Passing is no proof: a
    dependence may only occur for other numbers of records or other values.

    Parameters
    ----------
    oracle : Oracle
    data : SiloData
        Public or synthetic records, since the result depends on them, with the number of features,
        dtype, layout, feature range and row bound of the training data: libraries sum wide rows
        (``np.einsum`` beyond 8 192 entries) and large batches in a different order.
    w : ndarray, shape (P,), optional
        The parameters; by default the start of `oracle` plus normal noise of std 0.1, since many
        terms vanish at 0.
    trials : int, default=100
        Number of arrangements of each kind.
    rng : numpy.random.Generator, int or None, default=0
        Source of the random records and arrangements.

    Raises
    ------
    TypeError, ValueError
        When a gradient differs, or is not finite, or `gradients` returns an invalid array.
    """
    trials, generator = count("trials", trials), np.random.default_rng(rng)
    if w is None:
        start = oracle.start(data)
        w = start + 0.1 * generator.standard_normal(start.shape)
    chosen = generator.permutation(data.n)[:256]
    n = len(chosen)
    reference = record_gradients(oracle, data, w, chosen)
    if not np.isfinite(reference).all():
        bad = int(np.count_nonzero(~np.isfinite(reference).all(axis=1)))
        raise ValueError(
            f"gradients of {oracle.name!r} must be finite, got NaN or infinity in {bad} of {n}"
        )
    arrangements = {
        "by itself": lambda: generator.integers(n, size=1),
        "in a pair": lambda: generator.permutation(n)[:2],
        "in a part of the records": lambda: np.sort(
            generator.permutation(n)[: generator.integers(1, n, endpoint=True)]
        ),
        "in another order": lambda: generator.permutation(n),
        "beside copies of records": lambda: generator.integers(
            n, size=generator.integers(2, n + 1, endpoint=True)
        ),
    }
    for name, arrange in arrangements.items():
        for _ in range(trials):
            positions = arrange()
            found = record_gradients(oracle, data, w, chosen[positions])
            _require_equal(oracle, found, reference[positions], name)
    X, y = effective_rows(data, chosen), data.y[chosen]
    for _ in range(trials):
        kept = generator.permutation(n) < generator.integers(1, n, endpoint=True)
        factors = np.where(generator.random(n) < 0.1, 0.0, generator.uniform(-1.0, 1.0, n))
        factors[kept] = 1.0
        rows, labels = _scaled(X, factors), np.where(kept, y, generator.permutation(y))
        found = checked_gradients(oracle, oracle.gradients(w.copy(), rows, labels), n, w.size)
        found = _weighted(data, chosen, found)
        _require_equal(oracle, found[kept], reference[kept], "beside other rows and labels")


def _scaled(X: Any, factors: FloatArray) -> Any:
    """Return a copy of rows, dense or CSR, times a factor each, in their dtype."""
    scaled, factors = X.copy(), factors.astype(X.dtype)
    if isinstance(X, np.ndarray):
        scaled *= factors[:, np.newaxis]
    else:
        scaled.data *= np.repeat(factors, np.diff(X.indptr))
    return scaled


def _require_equal(oracle: Oracle, found: NDArray[Any], expected: NDArray[Any], where: str) -> None:
    if not np.array_equal(found, expected, equal_nan=True):
        raise ValueError(
            f"gradients of {oracle.name!r} must depend on their own record alone, got others for "
            f"a record {where}. If only last digits differ, products of matrices (X @ W) may be "
            "the cause, which round by the number of rows: np.einsum does not"
        )


@dataclass(frozen=True)
class NotKept(Oracle):
    """A user's own model from a file, which stores its declaration but not its code."""

    declared: dict[str, Any]

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ValueError(
            f"the model {self.declared.get('name')!r} is the user's own, which a file does not "
            "hold: give the parameters `w` of this result to its outputs"
        )

    dim = gradients = outputs = _refuse

    @property
    def declaration(self) -> dict[str, Any]:
        return self.declared
