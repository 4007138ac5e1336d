"""Sums of clipped per-record gradients, and of their differences, for any model."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from dpkern import kernels
from dpkern._typing import FloatArray, IntArray
from dpkern.data import row_norms
from dpkern.kernels.grids import mlp_factor_grid
from dpkern.models.networks import MLP
from dpkern.models.oracles import Oracle, record_gradients
from dpkern.models.ordinal import AllThreshold
from dpkern.privacy.sampling.record_sampling import Rows
from dpkern.solvers.base.backends import awaited
from dpkern.solvers.base.run import Run
from dpkern.solvers.releases.gradient import gradient_sums

# A sum of so many is exact on any grid, even where the number of records is hidden (`choose_grid`).
_LARGEST_CHUNK = 1 << 20
_LARGEST_STEPS = 1 << 52


class Sums(ABC):
    """sum_i min(1, C / |v_i|) v_i over the silos' batches, v_i gradients or differences of them."""

    def __init__(self, run: Run) -> None:
        self._run, self._data = run, run.objective.data
        self._n_threads = run.objective.n_threads

    def finest(self, clip: float, *, points: int) -> float | None:
        """Return the grid on which sums are exact before one rounding, or None without rounding.

        `points` is 1 for gradients and 2 for differences.
        """
        return None

    @abstractmethod
    async def gradient(self, w: FloatArray, **how: Any) -> FloatArray:
        """Return the sums of gradients at w, shape (P,) or (m, P), as an array (m, P).

        The keywords are the kernels' clip, grid, silo_weight and rows.
        """

    @abstractmethod
    async def difference(self, new: FloatArray, old: FloatArray, **how: Any) -> FloatArray:
        """Return the sums of differences of gradients between two models, shape (m, P)."""

    @abstractmethod
    def vectors(self, w: FloatArray, records: IntArray) -> FloatArray:
        """Return the unclipped gradient at w, shape (P,), of each of k records, shape (k, P)."""

    def difference_vectors(self, new: FloatArray, old: FloatArray, records: IntArray) -> FloatArray:
        """Return the differences of clipped gradients between two models, shape (k, P)."""
        later, earlier = (
            clipped(self.vectors(w, records), self._run.plan.clip) for w in (new, old)
        )
        return later - earlier


def clipped(G: Any, clip: float, weight: float | FloatArray | None = None) -> FloatArray:
    """Return weight min(1, C / |g|) g of every row, in floating point: no guarantee relies on it.

    Differences must be of clipped gradients, so that they telescope.
    """
    vectors = np.array(G, dtype=np.float64, order="C")
    with np.errstate(all="ignore"):
        vectors *= np.minimum(1.0, clip / row_norms(vectors))[:, np.newaxis]
        if weight is not None:
            vectors *= weight
    return vectors


class GlmSums(Sums):
    """Sums for linear models."""

    # Margins of all records at the last `new`, which may be the next call's `old`.
    _margins: FloatArray | None = None
    _margins_at: FloatArray | None = None

    async def gradient(self, w: FloatArray, **how: Any) -> FloatArray:
        return await gradient_sums(self._run, w, **how)

    async def difference(self, new: FloatArray, old: FloatArray, **how: Any) -> FloatArray:
        if how["rows"] is None:
            old_margins = self._margins if self._margins_at is old else None
            self._margins = np.empty(self._data.n) if self._margins is None else self._margins
            how |= {"margins": old_margins, "new_margins": self._margins}
            self._margins_at = new
        how |= {"loss": self._run.objective.phi, "gradient_clip": self._run.plan.clip}
        return await self._run.sums(kernels.glm_difference, new, old, **how)

    def vectors(self, w: FloatArray, records: IntArray) -> FloatArray:
        return kernels.glm_gradient(
            self._data.each_alone(records),
            w,
            loss=self._run.objective.phi,
            clip=math.inf,
            n_threads=self._n_threads,
        )


class MlpSums(Sums):
    """Sums for multilayer perceptrons, which are exact by integer-valued factors."""

    def __init__(self, run: Run, mlp: MLP) -> None:
        super().__init__(run)
        self._how: dict[str, Any] = {
            "layers": mlp.layers(self._data),
            "activation": mlp.activation,
            "loss": mlp.loss,
        }
        self._records = run.objective.n if run.plan.sizes_are_hidden else None

    def finest(self, clip: float, *, points: int) -> float | None:
        if clip == math.inf:
            return None
        n = self._data.n if self._records is None else 32 * self._records
        sizes = (self._data.n_features, *self._how["layers"])
        return mlp_factor_grid(n, clip, sizes, points=points) ** 2

    async def gradient(self, w: FloatArray, **how: Any) -> FloatArray:
        how |= {"records": self._records, **self._how}
        return await self._run.sums(kernels.mlp_gradient, w, **how)

    async def difference(self, new: FloatArray, old: FloatArray, **how: Any) -> FloatArray:
        how |= {"gradient_clip": self._run.plan.clip, **self._how}
        return await self._run.sums(kernels.mlp_difference, new, old, **how)

    def vectors(self, w: FloatArray, records: IntArray) -> FloatArray:
        alone = self._data.each_alone(records)
        return kernels.mlp_gradient(alone, w, clip=math.inf, n_threads=self._n_threads, **self._how)


class RecordSums(Sums):
    """Sums for a user's model, whose per-record gradients are computed in chunks."""

    def __init__(self, run: Run, oracle: Oracle) -> None:
        super().__init__(run)
        self._oracle, self._dim = oracle, run.objective.dim
        self._chunk = min(max(1, oracle.chunk_bytes // (8 * self._dim)), _LARGEST_CHUNK)

    async def gradient(self, w: FloatArray, **how: Any) -> FloatArray:
        with self._run.clock("kernels"):
            # Weighted gradients are products in floating point, on the CPU.
            on_card = how["silo_weight"] is None
            return self._sums(
                lambda j, c: self._gradients(w[j] if w.ndim == 2 else w, c, on_card=on_card),
                **how,
            )

    async def difference(self, new: FloatArray, old: FloatArray, **how: Any) -> FloatArray:
        with self._run.clock("kernels"):
            return self._sums(lambda _, chunk: self.difference_vectors(new, old, chunk), **how)

    def vectors(self, w: FloatArray, records: IntArray) -> FloatArray:
        found = np.empty((len(records), self._dim))
        for chunk in self._chunks(len(records)):
            found[chunk] = self._gradients(w, records[chunk])
        return found

    def _chunks(self, n: int) -> Iterator[slice]:
        return (slice(i, min(i + self._chunk, n)) for i in range(0, n, self._chunk))

    def _gradients(self, w: FloatArray, records: IntArray, *, on_card: bool = False) -> Any:
        compute = partial(record_gradients, self._oracle, self._data, w, records, on_card=on_card)
        return awaited(compute, math.inf)

    def _sums(
        self,
        vectors: Callable[[int, IntArray], Any],
        *,
        clip: float,
        grid: FloatArray | None,
        silo_weight: FloatArray | None,
        rows: Rows | None,
    ) -> FloatArray:
        """Sum the clipped vectors of the batches; on a grid, in 64-bit integers."""
        data = self._data
        records, offsets = (np.arange(data.offsets[-1]), data.offsets) if rows is None else rows
        sums = np.zeros((data.m, self._dim))
        for j in range(data.m):
            weight = 1.0 if silo_weight is None else float(silo_weight[j])
            q = None if grid is None else float(grid[j])
            batch = records[offsets[j] : offsets[j + 1]]
            steps = np.zeros(self._dim, dtype=np.int64)
            for chunk in self._chunks(len(batch)):
                G = vectors(j, batch[chunk])
                if weight != 1.0:
                    G = clipped(G, clip, weight)
                part = kernels.clip_and_sum(G, clip=clip, grid=q, n_threads=self._n_threads)[0]
                if q is None:
                    sums[j] += part
                else:
                    steps += (part / q).astype(np.int64)
            if q is not None:
                sums[j] = np.clip(steps, -_LARGEST_STEPS, _LARGEST_STEPS) * q
        return sums


class OrdinalSums(RecordSums):
    """Sums for ordered classes; those of differences are of vectors, as of a user's model."""

    def __init__(self, run: Run, model: AllThreshold) -> None:
        super().__init__(run, model)
        self._model = {"classes": model.classes(self._data), "unit": model.unit}

    async def gradient(self, w: FloatArray, **how: Any) -> FloatArray:
        how |= {**self._model, "saturate": self._run.plan.sizes_are_hidden}
        return await self._run.sums(kernels.ordinal_gradient, w, **how)

    def vectors(self, w: FloatArray, records: IntArray) -> FloatArray:
        alone = self._data.each_alone(records)
        how: dict[str, Any] = {**self._model, "n_threads": self._n_threads}
        return kernels.ordinal_gradient(alone, w, clip=math.inf, **how)


def sums_of(run: Run) -> Sums:
    """Return the sums for the run's model."""
    loss = run.objective.loss
    if isinstance(loss, MLP):
        return MlpSums(run, loss)
    if isinstance(loss, AllThreshold):
        return OrdinalSums(run, loss)
    return RecordSums(run, loss) if isinstance(loss, Oracle) else GlmSums(run)
