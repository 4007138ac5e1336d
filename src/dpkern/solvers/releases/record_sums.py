"""Sums of clipped per-record gradients, and of their differences, of any model on a grid."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpkern import kernels
from dpkern.data import row_norms
from dpkern.models.networks import MLP
from dpkern.models.oracles import Oracle, record_gradients
from dpkern.privacy.record_sampling import Rows
from dpkern.solvers.base.run import Run

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Per-record gradients that are in memory at a time.
_CHUNK_BYTES = 1 << 25
# Any grid holds the sum of so many, even where the number of records is hidden (`choose_grid`).
_LARGEST_CHUNK = 1 << 20
_LARGEST_STEPS = 1 << 52


class Sums(ABC):
    """sum_i min(1, C / |v_i|) v_i over every silo's batch, v_i a gradient or a difference of two.

    Parameters
    ----------
    run : Run
        Gives data, model and the clip norm of gradients.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._data = run, run.objective.data
        self._n_threads = run.objective.n_threads

    def finest(self, clip: float, *, points: int) -> float | None:
        """The grid of exact sums that are rounded once to the one asked for; None without that.

        points: 1 for gradients, 2 for differences.
        """
        return None

    @abstractmethod
    def gradient(self, w: FloatArray, **how: Any) -> FloatArray:
        """Of the gradients at w, shape (P,) or (m, P), as (m, P).

        how: clip, grid, silo_weight and rows, as the kernels take them.
        """

    @abstractmethod
    def difference(self, new: FloatArray, old: FloatArray, **how: Any) -> FloatArray:
        """Of the differences of gradients between two points, shape (m, P)."""

    @abstractmethod
    def vectors(self, w: FloatArray, records: IntArray) -> FloatArray:
        """The gradient of each of the records at w, shape (P,): as (k, P), not clipped."""

    def difference_vectors(self, new: FloatArray, old: FloatArray, records: IntArray) -> FloatArray:
        """The differences of clipped gradients between two points, shape (k, P)."""
        later, earlier = (clipped(self.vectors(w, records), self._run.clip) for w in (new, old))
        return later - earlier


def clipped(G: Any, clip: float) -> FloatArray:
    """min(1, C / |g|) g of every row, in floating point: no guarantee rests on it.

    Differences of gradients that are longer than those summed up before would not telescope.
    """
    vectors = np.array(G, dtype=np.float64, order="C")
    with np.errstate(all="ignore"):
        vectors *= np.minimum(1.0, clip / row_norms(vectors))[:, np.newaxis]
    return vectors


class GlmSums(Sums):
    """Linear models."""

    _margins: FloatArray | None = None  # of all records, at the last `new`
    _margins_of: FloatArray | None = None

    def gradient(self, w: FloatArray, **how: Any) -> FloatArray:
        return kernels.glm_gradient(
            self._data,
            w,
            loss=self._run.objective.phi,
            saturate=self._run.sizes_are_hidden,
            n_threads=self._n_threads,
            **how,
        )

    def difference(self, new: FloatArray, old: FloatArray, **how: Any) -> FloatArray:
        if how["rows"] is None:  # every record: its margin at `new` is that at `old` next time
            at_old = self._margins_of is not None and np.array_equal(self._margins_of, old)
            kept = self._margins if at_old else None
            self._margins = np.empty(self._data.n) if self._margins is None else self._margins
            how |= {"margins": kept, "new_margins": self._margins}
            self._margins_of = new.copy()
        return kernels.glm_difference(
            self._data,
            new,
            old,
            loss=self._run.objective.phi,
            gradient_clip=self._run.clip,
            n_threads=self._n_threads,
            **how,
        )

    def vectors(self, w: FloatArray, records: IntArray) -> FloatArray:
        return kernels.glm_gradient(
            self._data.each_alone(records),
            w,
            loss=self._run.objective.phi,
            clip=math.inf,
            n_threads=self._n_threads,
        )


class MlpSums(Sums):
    """Multilayer perceptrons, whose sums are exact on integer-valued factors."""

    def __init__(self, run: Run, mlp: MLP) -> None:
        super().__init__(run)
        self._how: dict[str, Any] = {
            "layers": mlp.layers(self._data),
            "activation": mlp.activation,
            "loss": mlp.loss,
            "n_threads": self._n_threads,
        }
        self._records = run.objective.n if run.sizes_are_hidden else None

    def finest(self, clip: float, *, points: int) -> float | None:
        if clip == math.inf:
            return None
        n = self._data.n if self._records is None else 32 * self._records
        sizes = (self._data.n_features, *self._how["layers"])
        return kernels.mlp_factor_grid(n, clip, sizes, points=points) ** 2

    def gradient(self, w: FloatArray, **how: Any) -> FloatArray:
        return kernels.mlp_gradient(self._data, w, records=self._records, **self._how, **how)

    def difference(self, new: FloatArray, old: FloatArray, **how: Any) -> FloatArray:
        how |= {"gradient_clip": self._run.clip}
        return kernels.mlp_difference(self._data, new, old, **self._how, **how)

    def vectors(self, w: FloatArray, records: IntArray) -> FloatArray:
        alone = self._data.each_alone(records)
        return kernels.mlp_gradient(alone, w, clip=math.inf, **self._how)


class RecordSums(Sums):
    """A user's model, which gives the gradients of records: a chunk of them at a time."""

    def __init__(self, run: Run, oracle: Oracle) -> None:
        super().__init__(run)
        self._oracle, self._dim = oracle, run.objective.dim
        self._chunk = min(max(1, _CHUNK_BYTES // (8 * self._dim)), _LARGEST_CHUNK)

    def gradient(self, w: FloatArray, **how: Any) -> FloatArray:
        return self._sums(lambda j, c: self._gradients(w[j] if w.ndim == 2 else w, c), **how)

    def difference(self, new: FloatArray, old: FloatArray, **how: Any) -> FloatArray:
        def differences(_: int, chunk: IntArray) -> FloatArray:
            later, earlier = (
                clipped(self._gradients(w, chunk), self._run.clip) for w in (new, old)
            )
            return later - earlier

        return self._sums(differences, **how)

    def vectors(self, w: FloatArray, records: IntArray) -> FloatArray:
        found = np.empty((len(records), self._dim))
        for chunk in self._chunks(len(records)):
            found[chunk] = self._gradients(w, records[chunk])
        return found

    def _chunks(self, n: int) -> Iterator[slice]:
        return (slice(i, min(i + self._chunk, n)) for i in range(0, n, self._chunk))

    def _gradients(self, w: FloatArray, records: IntArray) -> NDArray[Any]:
        return record_gradients(self._oracle, self._data, w, records)

    def _sums(
        self,
        vectors: Callable[[int, IntArray], Any],
        *,
        clip: float,
        grid: FloatArray | None,
        silo_weight: FloatArray | None,
        rows: Rows | None,
    ) -> FloatArray:
        """Chunk by chunk; on a grid as whole numbers of its steps, of any number of records."""
        data = self._data
        records, offsets = (np.arange(data.n), data.offsets) if rows is None else rows
        sums = np.zeros((data.m, self._dim))
        for j in range(data.m):
            weight = 1.0 if silo_weight is None else float(silo_weight[j])
            q = None if grid is None else float(grid[j])
            batch = records[offsets[j] : offsets[j + 1]]
            steps = np.zeros(self._dim, dtype=np.int64)
            for chunk in self._chunks(len(batch)):
                G = vectors(j, batch[chunk])
                if weight != 1.0:
                    G = weight * clipped(G, clip)
                part = kernels.clip_and_sum(G, clip=clip, grid=q, n_threads=self._n_threads)[0]
                if q is None:
                    sums[j] += part
                else:
                    steps += (part / q).astype(np.int64)
            if q is not None:
                sums[j] = np.clip(steps, -_LARGEST_STEPS, _LARGEST_STEPS) * q
        return sums


def sums_of(run: Run) -> Sums:
    """The sums of the run's model."""
    loss = run.objective.loss
    if isinstance(loss, MLP):
        return MlpSums(run, loss)
    return RecordSums(run, loss) if isinstance(loss, Oracle) else GlmSums(run)


__all__ = ["Sums", "clipped", "sums_of"]
