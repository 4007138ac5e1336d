"""The released direction of double-noise Newton, and the trace that regularises it."""

import functools
import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpkern import kernels
from dpkern.privacy._exact import round_up, sqrt_up
from dpkern.privacy.mechanisms.grids import MAX_RECORDS, records_of
from dpkern.privacy.mechanisms.messages import GaussianMessages
from dpkern.solvers.base.run import Run

FloatArray = NDArray[np.float64]


class NoisyDirection:
    """The released direction at a public model, from a released gradient."""

    def __init__(
        self,
        run: Run,
        *,
        variant: str,
        hess_clip: float,
        trace_mu: float | None,
        mu: float | None,
    ) -> None:
        objective, data = run.objective, run.objective.data
        self._run, self._add, self._hess_clip, self._mu = run, variant == "add", hess_clip, mu
        self._penalty = objective.l2 * objective.penalized
        self._least = float(self._penalty.min())  # eigenvalue of the mean Hessian and penalty
        # Backward error of forming and solving, relative to |A| + l0.
        self._relative = 16.0 * (data.d + 1) ** 2 * 2.0**-53
        self._moved = 1.0 if self._add or run.sizes_are_hidden else math.sqrt(2.0)  # f / b
        self._records, self._trace_bound = None, data.n
        self._trace_moved, self._not_seen = hess_clip, 0.0
        if run.sizes_are_hidden:
            # A silo's sum of very many records is rounded to a double, and their sum once a silo.
            rounded = data.m + data.d + 2
            self._relative += rounded * 2.0**-53
            self._records, self._trace_bound = records_of(objective.n), MAX_RECORDS
            self._trace_moved *= 1.0 + rounded * 2.0**-53 * 2.0 * MAX_RECORDS
            if trace_mu is not None:
                # Its noise is (1 + 1/32) / mu at most: 14 deviations, and the neighbour's record.
                self._not_seen = (15.0 / trace_mu + 2.0) * self._trace_moved
        if mu is not None:
            # What cannot work with public numbers is refused before anything is released.
            kernels.hessian_row_grid(self._records or data.n, hess_clip, data.d)
            self._moved_by_one(self._regularisation(0.0), 0.0)
        messages = functools.partial(GaussianMessages, run.channel("central"))
        self._trace = messages(what="trace of the summed Hessian", dim=1, mu=trace_mu)
        self._release = messages(what="Newton direction", dim=data.d, mu=mu)

    def __call__(self, w: FloatArray, g: FloatArray) -> FloatArray:
        run, objective = self._run, self._run.objective
        om = objective.record_weight()
        with run.clock("kernels"):
            H = kernels.glm_hessian(
                objective.data,
                w,
                loss=objective.phi,
                hess_clip=self._hess_clip,
                silo_weight=objective.silo_weight(),
                records=self._records,
                n_threads=objective.n_threads,
            ).sum(axis=0)
        with run.clock("noise"):
            trace = om * self._released_trace(np.trace(H))
        l0 = self._regularisation(trace) if self._mu else self._without_noise(trace)
        A, floor = om * H + np.diag(self._penalty), l0
        if self._add:
            # All eigenvalues are above l0 / 2: no truncation, and so a Cholesky solve.
            A, floor = A + l0 * np.eye(g.size), 0.5 * l0
        with run.clock("kernels"):
            p = kernels.newton_direction(
                A[np.newaxis], g[np.newaxis], floor=floor, n_threads=objective.n_threads
            )
        with run.clock("noise"):
            return self._released_direction(p, g, l0, trace)

    def _released_trace(self, trace: float) -> float:
        if self._mu is None:
            return float(trace)
        bound = round_up(self._trace_bound * Fraction(self._hess_clip))
        noisy = self._trace.release(
            np.array([[trace]]), sensitivity=[self._trace_moved], bound=bound
        )
        return max(float(noisy[0]), 0.0)

    @property
    def _largest(self) -> float:
        """b: Frobenius norm of one record's share of A, at most."""
        return self._hess_clip * self._run.objective.record_weight()

    def _size(self, trace: float) -> float:
        """|A| at most: by the number of records or, where that is hidden, by the released trace."""
        objective = self._run.objective
        if self._run.sizes_are_hidden:
            return trace + self._not_seen * objective.record_weight() + objective.l2
        return self._largest * objective.n * (1.0 + 2.0**-40) + objective.l2

    def _regularisation(self, trace: float) -> float:
        """l0 of the authors' code, where b is 1 / (4 N), with room for the errors of solving."""
        assert self._mu is not None
        moved = self._largest * self._moved
        wanted = float(np.cbrt(32.0 * trace)) * (moved / self._mu) ** (2.0 / 3.0)
        return max(wanted, 4.0 * self._largest, 64.0 * self._relative * self._size(trace))

    def _without_noise(self, trace: float) -> float:
        """As little as the solution can be trusted with; 1 for a matrix of zeros."""
        return 64.0 * self._relative * (trace + self._run.objective.l2) or 1.0

    def _moved_by_one(self, l0: float, trace: float) -> tuple[Fraction, Fraction]:
        """|p - p'| / |g| for the doubles computed, and the least of |A g| / |g|, error included."""
        b = Fraction(self._run.objective.record_weight()) * Fraction(self._hess_clip)
        b *= 1 + Fraction(1, 2**50)  # A is formed in doubles
        wrong = Fraction(self._relative) * (Fraction(self._size(trace)) + Fraction(l0))
        if self._add:
            low = Fraction(l0) + Fraction(self._least)
            exact = b / (low * (low + b))
        else:
            low = max(Fraction(l0), Fraction(self._least))
            exact = Fraction(math.nextafter(self._moved, 2.0)) * b / low**2
        moved = exact + 2 * wrong / (low * (low - wrong))
        if moved > Fraction(5, 4) * exact:
            raise ValueError(
                "rounding errors of solving would exceed a quarter of the direction's sensitivity: "
                f"d = {self._penalty.size} or l2 = {self._run.objective.l2!r} is too large for "
                "silos of these sizes"
            )
        return moved, low - wrong

    def _released_direction(
        self, p: FloatArray, g: FloatArray, l0: float, trace: float
    ) -> FloatArray:
        if self._mu is None:
            return self._release.release(p)
        norm = sqrt_up(sum((Fraction(x) ** 2 for x in g.tolist()), Fraction(0)))
        if norm == 0.0:  # the direction is 0, whatever the records
            return np.zeros_like(g)
        moved, least = self._moved_by_one(l0, trace)
        return self._release.release(
            p,
            sensitivity=[round_up(moved * Fraction(norm))],
            bound=round_up(Fraction(norm) / least),
        )
