"""Gradient canaries: records with gradients of their own, and what a run's releases show of them.

The parameters are divided at random into as many groups as there are canaries. The gradient of a
canary is zero outside its group, where it is +-1 in every coordinate by fixed random signs, and so
long that it is always clipped: no canary moves what is seen of another one. From release to release
it changes its sign by public fair coins, each followed by its opposite: what true records add
changes slowly, and so does not look like it, and canaries hardly move the model.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray

from dpkern._typing import FloatArray, IntArray
from dpkern.data import ScaleWarning, SiloData
from dpkern.models.oracles import Oracle, checked_gradients
from dpkern.models.scale import Scale
from dpkern.transcript import Transcript

_LONG = 1e6  # entries of a gradient, which clip norms are far below
_ENTRIES = 8  # of a sparse row


@dataclass(frozen=True, eq=False)
class Canaries:
    """K canaries, and a coin each.

    Attributes
    ----------
    coins : ndarray of shape (K,), bool
        Of a replaced record, whether the gradient is the direction or its opposite; of an added
        one, whether it is in the data.
    places : ndarray of shape (K,), int64, sorted
        The record of the user's data that each is put before.
    rows : ndarray or csr_array of shape (K, n_features)
    order, starts : ndarray of shape (P,) and (K + 1,), int64
        Coordinates order[starts[i] : starts[i + 1]] are the group of canary i.
    signs : ndarray of shape (P,), float64
        Of the direction in these coordinates, in this order.
    """

    coins: NDArray[np.bool_]
    places: IntArray
    rows: Any
    order: IntArray
    starts: IntArray
    signs: FloatArray

    @classmethod
    def drawn(cls, data: SiloData, k: int, dim: int, rng: np.random.Generator) -> "Canaries":
        """Return k canaries for data and a model with so many parameters."""
        # As many to a silo as its share of the records, so that even silos stay so.
        silos = np.searchsorted(data.offsets, (np.arange(k) + 0.5) * data.n / k, side="right") - 1
        within = np.floor(rng.random(k) * data.sizes[silos]).astype(np.int64)
        return cls(
            coins=rng.random(k) < 0.5,
            places=np.sort(data.offsets[silos] + within),
            rows=_rows(data, k, rng),
            order=rng.permutation(dim),
            starts=np.arange(k + 1) * dim // k,
            signs=np.where(rng.random(dim) < 0.5, -1.0, 1.0),
        )

    def silos(self, data: SiloData) -> IntArray:
        """Return the silo of every canary, shape (K,)."""
        return np.searchsorted(data.offsets, self.places, side="right") - 1

    def joined(self, data: SiloData, chosen: IntArray) -> SiloData:
        """Return a copy of the data with the chosen canaries among them."""
        if data.is_weighted:
            raise ValueError(
                "data must have neither weight nor margin_offset, for an audit, got them"
            )
        places, rows = self.places[chosen], self.rows[chosen]
        if scipy.sparse.issparse(data.X):
            order = np.argsort(np.concatenate([np.arange(data.n), places - 0.5]), kind="stable")
            X = scipy.sparse.vstack([data.X, rows], format="csr")[order]
        else:
            X = np.insert(data.X, places, rows, axis=0)
        y = np.insert(data.y, places, 0.0)
        if data.classes is not None:
            y = data.classes[(y if data.task == "multiclass" else y > 0.0).astype(int)]
        options: dict[str, Any] = {
            "intercept": data.intercept,
            "row_bound": data.row_bound if np.isfinite(data.row_bound) else None,
            "target_bound": data.target_bound if np.isfinite(data.target_bound) else None,
            "feature_range": data.feature_range,
            "task": data.task,
            "classes": data.classes,
            "feature_names": data.feature_names,
            "schema": data.schema,
        }
        offsets = data.offsets + np.searchsorted(places, data.offsets)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ScaleWarning)
            joined = SiloData(X, y, offsets, **options)
        # Targets are less their middle already.
        return joined._replaced(notes=data.notes, transform=data.transform)

    def gradient(self, i: int) -> tuple[IntArray, FloatArray]:
        """Return the coordinates in which the gradient of canary i is not zero, and its entries."""
        group = slice(self.starts[i], self.starts[i + 1])
        return self.order[group], (_LONG if self.coins[i] else -_LONG) * self.signs[group]

    def seen(self, messages: FloatArray) -> FloatArray:
        """Return the products (k, K) of k messages (k, P) with all unit directions."""
        sums = np.add.reduceat(messages[:, self.order] * self.signs, self.starts[:-1], axis=1)
        products: FloatArray = sums / np.sqrt(np.diff(self.starts))
        return products


def _rows(data: SiloData, k: int, rng: np.random.Generator) -> Any:
    """Return k random rows within the public bounds, in the layout and dtype of the data."""
    p, dtype = data.n_features, data.X.dtype
    low, high = (-1.0, 1.0) if data.feature_range is None else data.feature_range
    scale = 1.0
    if data.feature_range is None and np.isfinite(data.row_bound):
        scale = data.row_bound / np.sqrt(p)
    if not scipy.sparse.issparse(data.X):
        return (scale * rng.uniform(low, high, (k, p))).astype(dtype)
    few = min(_ENTRIES, p)
    columns = np.sort([rng.choice(p, few, replace=False, shuffle=False) for _ in range(k)], axis=1)
    places = (columns.ravel().astype(np.int32), np.arange(0, k * few + 1, few, dtype=np.int32))
    values = scale * rng.uniform(
        np.broadcast_to(low, p)[columns], np.broadcast_to(high, p)[columns]
    )
    return scipy.sparse.csr_array((values.ravel().astype(dtype), *places), shape=(k, p))


def _keys(X: Any) -> Iterator[bytes]:
    """Yield the bytes of every row."""
    if not scipy.sparse.issparse(X):
        return (row.tobytes() for row in X)
    parts = pairwise(X.indptr.tolist())
    return (X.indices[a:b].tobytes() + X.data[a:b].tobytes() for a, b in parts)


class Projections(Transcript):
    """What the releases of a run show of canaries: a transcript that keeps nothing else.

    Attributes
    ----------
    products : list of T ndarrays of shape (K,)
        Of every release with the canaries' directions, in units of the std of its noise, and with
        the sign that gradients of canaries had in this release.
    kinds : list of T tuples
        The public numbers of a release: those of one kind are alike.
    used : list of T ndarrays of shape (K,), bool
        The canaries whose gradients were asked for.
    """

    sign: float  # of the gradients of canaries in the next release

    def __init__(
        self, canaries: Canaries, silos: IntArray, dim: int, rng: np.random.Generator
    ) -> None:
        super().__init__()
        self._canaries, self._silos, self._dim, self._rng = canaries, silos, dim, rng
        self.products: list[FloatArray] = []
        self.kinds: list[tuple[Any, ...]] = []
        self.used: list[NDArray[np.bool_]] = []
        self._next()

    def _next(self) -> None:
        self._now = np.zeros(len(self._silos), dtype=bool)
        odd = len(self.products) % 2
        self.sign = -self.sign if odd else float(self._rng.choice([-1.0, 1.0]))

    def asked(self, canaries: IntArray) -> None:
        """Note whose gradients the next release is from."""
        self._now[canaries] = True

    def passed(
        self,
        released: FloatArray,
        exact: FloatArray | None,
        std: ArrayLike | None,
        sampling: Any,
    ) -> FloatArray:
        """Keep the products of a release, unless it is of other numbers than the parameters."""
        if released.size and released.size % self._dim == 0:
            products = self._canaries.seen(released.reshape(-1, self._dim))
            k, stds = len(products), np.atleast_1d(np.asarray(0.0 if std is None else std))
            stds = np.broadcast_to(stds, k)
            products *= self.sign / np.where(stds > 0.0, stds, 1.0)[:, np.newaxis]
            rows = self._silos if k > 1 else np.zeros_like(self._silos)
            self.products.append(products[rows, np.arange(len(rows))])
            secret = any(
                drawn < n
                for drawn, n in zip(
                    sampling.get("batch_sizes", ()), sampling.get("sizes", ()), strict=True
                )
            )
            self.kinds.append((k, *stds.tolist(), secret))
            self.used.append(self._now)
            self._next()
        return released


class WithCanaries(Oracle):
    """A user's model that has the gradients of the canaries too.

    It knows them by the bytes of their effective rows, and never shows them to the user's model.
    """

    def __init__(
        self, model: Oracle, canaries: Canaries, rows: Any, chosen: IntArray, seen: Projections
    ) -> None:
        self._model, self._canaries, self._seen = model, canaries, seen
        self._keys = dict(zip(_keys(rows), chosen.tolist(), strict=True))
        self._buffer: Any = np.empty((0, 0))
        self.name, self.smoothness = model.name, model.smoothness

    def found(self, X: Any) -> IntArray:
        """Return the canary that every row is, or -1."""
        return np.array([self._keys.get(key, -1) for key in _keys(X)], dtype=np.int64)

    def dim(self, data: SiloData) -> int:
        return self._model.dim(data)

    def start(self, data: SiloData) -> FloatArray:
        return self._model.start(data)

    def scale(self, data: SiloData) -> Scale | None:
        return self._model.scale(data)

    def gradients(self, w: FloatArray, X: NDArray[Any], y: FloatArray) -> Any:
        found = self.found(X)
        own = found < 0
        if own.all():
            return self._model.gradients(w, X, y)
        self._seen.asked(found[~own])
        part: Any = np.empty((0, w.size))
        if own.any():
            given = self._model.gradients(w, X[own], y[own])
            part = checked_gradients(self._model, given, int(own.sum()), w.size)
        # Copied run by run between canaries, to memory of which solvers keep nothing: they sum the
        # gradients of a call before the next one.
        if self._buffer.dtype != part.dtype or len(self._buffer) < len(y):
            self._buffer = np.empty((len(y), w.size), part.dtype)
        G, rows = self._buffer[: len(y)], np.flatnonzero(~own)
        for before, (last, end) in enumerate(pairwise([-1, *rows.tolist(), len(y)])):
            G[last + 1 : end] = part[last + 1 - before : end - before]
        G[rows] = 0.0
        for row in rows:
            columns, entries = self._canaries.gradient(found[row])
            G[row, columns] = self._seen.sign * entries
        return G

    def losses(self, w: FloatArray, X: NDArray[Any], y: FloatArray) -> FloatArray:
        own, losses = self.found(X) < 0, np.zeros(len(y))
        losses[own] = self._model.losses(w, X[own], y[own])
        return losses

    def outputs(self, w: FloatArray, X: NDArray[Any]) -> FloatArray:
        return self._model.outputs(w, X)

    @property
    def declaration(self) -> dict[str, Any]:
        return self._model.declaration


def scores(
    seen: Projections, coins: NDArray[np.bool_], known: NDArray[np.bool_], *, hidden: bool
) -> FloatArray:
    """Return a score of every canary (K,), of which the known coins choose the weights.

    The weights of T releases are those of Fisher's linear discriminant: what true records add to a
    release, which moves along with them from round to round, is learnt from the covariance of the
    products, and the signal of each kind of release from the known coins. `hidden` says whether
    the run's releases may depend on a canary's coin by its being asked for; else a release that
    is not of a secret sample counts only for the canaries that it is from.
    """
    D = np.array(seen.products)  # (T, K)
    T, K = D.shape
    noiseless = np.array([not any(kind[1:-1]) for kind in seen.kinds])
    spread = D[noiseless].std(axis=1, keepdims=True)
    D[noiseless] /= np.where(spread > 0.0, spread, 1.0)
    counts = np.ones((T, K), dtype=bool)
    if not hidden:
        public = np.array([not kind[-1] for kind in seen.kinds])
        counts[public] = np.array(seen.used)[public]
    D -= D.mean(axis=1, keepdims=True)

    signal = np.zeros(T)
    numbers = {kind: i for i, kind in enumerate(dict.fromkeys(seen.kinds))}
    number = np.array([numbers[kind] for kind in seen.kinds])
    for i in range(len(numbers)):
        of_kind = number == i
        chosen = counts & known & of_kind[:, np.newaxis]
        inside, outside = D[chosen & coins], D[chosen & ~coins]
        if inside.size and outside.size:
            signal[of_kind] = inside.mean() - outside.mean()
    # Without what the coins add. The noise has the variance 1, so that only what is above what it
    # alone would reach is more.
    shared = counts.astype(np.float64) @ counts.T / K
    variances, vectors = np.linalg.eigh(D @ D.T / K - 0.25 * np.outer(signal, signal) * shared)
    edge = (1.0 + np.sqrt(T / K)) ** 2
    shrunk = np.where(variances > edge, 1.0 / np.maximum(variances, 1.0), 1.0)
    weights = vectors @ (shrunk * (vectors.T @ signal))
    found: FloatArray = weights @ (D * counts)
    return found
