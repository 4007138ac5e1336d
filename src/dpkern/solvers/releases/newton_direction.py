"""The released direction of double-noise Newton, and the released trace for its regularisation."""

import functools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from dpkern import kernels
from dpkern._typing import FloatArray
from dpkern.kernels.grids import hessian_row_grid
from dpkern.models.losses import Custom
from dpkern.privacy import split_budget
from dpkern.privacy.guarantees.rounding import round_up, sqrt_up
from dpkern.privacy.mechanisms.messages import GaussianMessages
from dpkern.privacy.sensitivity.grids import MAX_RECORDS, grid_records
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.base.plan import RunPlan
from dpkern.solvers.base.run import Run
from dpkern.solvers.base.settings import direction_noise_floor
from dpkern.solvers.releases.hessian import resolve_hess_clip

SOLVED = (
    "solving takes LAPACK and BLAS to be conventional (no Strassen-like products, no emulated "
    "doubles)"
)
CLIPPED = (
    "variant 'clip' takes LAPACK's symmetric eigensolver to converge, and eigenvalues and vectors "
    "to be backward stable within 16 (d + 1)^2 2^-53 of the matrix's norm, in Frobenius norm"
)


def shared(run: Run, gradient: float, trace: float) -> tuple[float | None, ...]:
    """Return mu of one release of gradients, traces and directions, from shares of mu^2."""
    shares = gradient, trace, 1.0 - (gradient + trace)
    if shares[2] <= 0.0:
        raise ValueError(
            "gradient_share and trace_share must leave a share of the budget for directions, got "
            f"{gradient!r} and {trace!r}"
        )
    if run.plan.budget is None:
        return None, None, None
    return split_budget(run.plan.budget.mu, shares, (run.plan.rounds,) * 3)


def resolve_curvature(plan: RunPlan, objective: Objective) -> RunPlan:
    """Resolve the option `curvature`: "auto" is the upper bound, with noise, if there is one."""
    if plan.arguments["curvature"] == "auto":
        bounded = plan.budget is not None and not isinstance(objective.phi, Custom)
        plan = plan.replace_arguments(curvature="upper_bound" if bounded else "hessian")
    return resolve_hess_clip(plan, objective)


class NoisyDirection:
    """The noisy Newton direction at a public model, for a released gradient.

    `mu` are the budgets of a trace and a direction, `regularisation` a public lower bound of l0.
    """

    def __init__(
        self,
        run: Run,
        *,
        mu: Sequence[float | None],
        regularisation: float,
    ) -> None:
        objective, data = run.objective, run.objective.data
        trace_mu, self._mu = mu
        options = run.plan.options
        self._run, self._add = run, options["variant"] == "add"
        self._hess_clip = hess_clip = float(options["hess_clip"])
        self._public_regularisation = regularisation
        self._trace_coeff, self._curvature = options["trace_coeff"], options["curvature"]
        self._penalty = objective.l2 * objective.penalized
        self._least = float(self._penalty.min())  # eigenvalue of the mean Hessian and penalty
        # Backward error of forming and solving the system, relative to |A| + l0.
        self._backward_error = 16.0 * (data.d + 1) ** 2 * 2.0**-53
        # f / b
        self._hessian_change = 1.0 if self._add or run.plan.sizes_are_hidden else math.sqrt(2.0)
        self._records, self._trace_bound = None, data.n
        self._trace_sensitivity, self._trace_error = hess_clip, 0.0
        if run.plan.sizes_are_hidden:
            # Very large sums are rounded to doubles, in every silo and in the sum over silos.
            roundings = data.m + data.d + 2
            self._backward_error += roundings * 2.0**-53
            self._records, self._trace_bound = grid_records(objective.n), MAX_RECORDS
            self._trace_sensitivity *= 1.0 + roundings * 2.0**-53 * 2.0 * MAX_RECORDS
            if trace_mu is not None:
                # 14 standard deviations of at most (1 + 1/32) / mu, and the neighbour's record.
                self._trace_error = (15.0 / trace_mu + 2.0) * self._trace_sensitivity
        if self._mu is not None:
            # Infeasible parameters raise here, before anything is released.
            hessian_row_grid(self._records or data.n, hess_clip, data.d)
            self._sensitivity(self._regularisation(0.0, 0.0), 0.0)
        messages = functools.partial(GaussianMessages, run.channel("central"))
        self._trace = messages(what="trace of the summed Hessian", dim=1, mu=trace_mu)
        self._release = messages(what="Newton direction", dim=data.d, mu=self._mu)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the certificate takes as true of LAPACK."""
        if self._mu is None:
            return ()
        return (SOLVED,) if self._add else (SOLVED, CLIPPED)

    async def __call__(self, w: FloatArray, g: FloatArray) -> FloatArray:
        run, objective = self._run, self._run.objective
        om = objective.record_weight()
        sums = await run.sums(
            kernels.glm_hessian,
            w,
            loss=objective.phi,
            hess_clip=self._hess_clip,
            curvature=self._curvature,
            silo_weight=objective.silo_weight(),
            records=self._records,
        )
        H = sums.sum(axis=0)
        with run.clock("noise"):
            trace = om * self._released_trace(np.trace(H))
        l0 = self._regularisation(trace, _norm(g)) if self._mu else self._without_noise(trace)
        A, floor = om * H + np.diag(self._penalty), l0
        if self._add:
            # All eigenvalues exceed the floor l0 / 2, which selects the kernel's Cholesky solve.
            A, floor = A + l0 * np.eye(g.size), 0.5 * l0
        p = await run.computed(kernels.newton_direction, A[np.newaxis], g[np.newaxis], floor=floor)
        with run.clock("noise"):
            return self._released_direction(p, g, l0, trace)

    def _released_trace(self, trace: float) -> float:
        if self._mu is None:
            return float(trace)
        bound = round_up(self._trace_bound * Fraction(self._hess_clip))
        noisy = self._trace.release(
            np.array([[trace]]), sensitivity=[self._trace_sensitivity], bound=bound
        )
        return max(float(noisy[0]), 0.0)

    @property
    def _record_bound(self) -> float:
        """b, the bound on the Frobenius norm of one record's share of A."""
        return self._hess_clip * self._run.objective.record_weight()

    def _norm_bound(self, trace: float) -> float:
        """Bound |A| by the number of records or, where that is hidden, by the released trace."""
        objective = self._run.objective
        if self._run.plan.sizes_are_hidden:
            return trace + self._trace_error * objective.record_weight() + objective.l2
        return self._record_bound * objective.n * (1.0 + 2.0**-40) + objective.l2

    def _regularisation(self, trace: float, norm: float) -> float:
        """Return l0 from the released trace and the norm of the released gradient.

        The first term is the authors', where b = 1 / (4 N). The others keep the noise in margins
        and the rounding errors small.
        """
        assert self._mu is not None
        f = self._record_bound * self._hessian_change
        l0 = float(np.cbrt(32.0 * self._trace_coeff * trace)) * (f / self._mu) ** (2.0 / 3.0)
        return max(
            l0,
            self._public_regularisation,
            direction_noise_floor(self._run.objective, norm * f / self._mu),
            4.0 * self._record_bound,
            64.0 * self._backward_error * self._norm_bound(trace),
        )

    def _without_noise(self, trace: float) -> float:
        """Return the smallest l0 for which the solve is accurate; 1 for a matrix of zeros."""
        return 64.0 * self._backward_error * (trace + self._run.objective.l2) or 1.0

    def _sensitivity(self, l0: float, trace: float) -> tuple[Fraction, Fraction]:
        """Bound |p - p'| / |g| from above and |A g| / |g| from below, with rounding errors."""
        b = Fraction(self._run.objective.record_weight()) * Fraction(self._hess_clip)
        b *= 1 + Fraction(1, 2**50)  # A is formed in doubles
        error = Fraction(self._backward_error) * (Fraction(self._norm_bound(trace)) + Fraction(l0))
        if self._add:
            low = Fraction(l0) + Fraction(self._least)
            exact = b / (low * (low + b))
        else:
            low = max(Fraction(l0), Fraction(self._least))
            exact = Fraction(math.nextafter(self._hessian_change, 2.0)) * b / low**2
        computed = exact + 2 * error / (low * (low - error))
        if computed > Fraction(5, 4) * exact:
            raise ValueError(
                "rounding errors of solving would exceed a quarter of the direction's sensitivity: "
                f"d = {self._penalty.size} or l2 = {self._run.objective.l2!r} is too large for "
                "silos of these sizes"
            )
        return computed, low - error

    def _released_direction(
        self, p: FloatArray, g: FloatArray, l0: float, trace: float
    ) -> FloatArray:
        if self._mu is None:
            return self._release.release(p)
        norm = _norm(g)
        if norm == 0.0:  # then the direction is 0 for any records
            return np.zeros_like(g)
        sensitivity, least = self._sensitivity(l0, trace)
        return self._release.release(
            p,
            sensitivity=[round_up(sensitivity * Fraction(norm))],
            bound=round_up(Fraction(norm) / least),
        )


def _norm(g: FloatArray) -> float:
    """Return |g|, rounded up."""
    return sqrt_up(sum((Fraction(x) ** 2 for x in g.tolist()), Fraction(0)))
