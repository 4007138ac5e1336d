"""The minimiser of a clipped, perturbed objective, and its release."""

import math
from fractions import Fraction

import numpy as np

from dpkern import kernels
from dpkern._typing import FloatArray
from dpkern.models.scale import largest_target
from dpkern.privacy.accountant.profiles import Bound
from dpkern.privacy.guarantees.rounding import round_up, sqrt_up
from dpkern.privacy.mechanisms.messages import GaussianMessages
from dpkern.privacy.mechanisms.perturbed_minimiser import PerturbedMinimiser
from dpkern.privacy.sensitivity.local_runs import clipped_smoothness
from dpkern.solvers.base.plan import announce_length, require_convex_loss
from dpkern.solvers.base.run import Run

TWICE_PUBLIC = (
    "add or remove: taken as public that there are at most twice as many records as declared; the "
    "number of steps and the bound of their error are for so many"
)
# Without noise the steps end within this share of the distance that they begin at.
_PLAIN_SHARE = 2.0**-30


class Minimiser:
    """w within tau of the minimiser of sum_i om_i l_i(w) + w' diag(D) w / 2 + b . w.

    om_i = (p_j / n_j) / max_k (p_k / n_k) is the weight of a record of silo j, and the penalties of
    the mean objective, divided by max_k (p_k / n_k), are D. b has a public part: penalties are
    of the distance from the first model. Conditions are checked before any record is read.
    """

    def __init__(self, run: Run, added_l2: float) -> None:
        objective, data = run.objective, run.objective.data
        why = "the minimiser must be unique, and smooth in the linear term"
        require_convex_loss(run.plan, objective, why)
        for name, value, remedy in (
            ("row_bound", data.row_bound, "give the data a row_bound"),
            ("loss.smoothness", objective.phi.smoothness, "take another loss"),
            ("loss.kappa", objective.phi.kappa, "take another loss"),
        ):
            if not math.isfinite(value):
                raise ValueError(
                    f"{name} must be finite for a minimiser that is known to be near, got "
                    f"{value!r}: {remedy}"
                )
        records = 2 * objective.n if run.plan.sizes_are_hidden else data.n
        if data.n > records:
            raise ValueError(
                "public_size must be at least half of the number of records in a minimisation, "
                "whose number of steps it bounds; got less"
            )
        self._run, self._silo_weight = run, objective.silo_weight()
        self.penalties = (objective.l2 * objective.penalized + added_l2) / objective.record_weight()
        least, largest = float(self.penalties.min()), float(self.penalties.max())
        if least == 0.0:
            raise ValueError(
                "added_l2 must be positive where l2 is 0 or the intercept is not penalised, got "
                f"{added_l2!r}"
            )
        smoothness = round_up(clipped_smoothness(objective.phi.smoothness, data.row_bound, data.d))
        self._mechanism, self._grid = None, None
        if run.plan.budget is None:
            self._curvature = records * smoothness + largest
            self._rho = math.sqrt(least / self._curvature)
            self.steps = math.ceil(-2.0 / self._rho * math.log(_PLAIN_SHARE))
            return
        recalibration, line = Fraction(run.plan.recalibration_mu or 0.0), Fraction(run.plan.line_mu)
        beside = sqrt_up(recalibration**2 + line**2)
        self._mechanism = mechanism = PerturbedMinimiser(
            run.channel(),
            run.plan.budget,
            clip=run.plan.clip,
            dim=data.d,
            records=records,
            smoothness=smoothness,
            kappa=objective.phi.kappa,
            penalties=(least, largest),
            beside=beside,
            public=float(self.penalties[-1]) * largest_target(data) if beside else 0.0,
        )
        if run.charge is not None:
            guarantee, n_draws = mechanism.guarantee, run.charge.accountant.assumed_draws
            if beside:
                guarantee = guarantee.sequential([guarantee], beside)
            run.charge.bound(Bound(minimiser=guarantee, n_draws=n_draws))
        found = mechanism.minimisation
        self._curvature, self._rho, self.steps = found.curvature, found.rho, found.steps
        announce_length(objective, {"passes": self.steps})
        self._grid = np.full(data.m, found.grid)

    async def release(self) -> FloatArray:
        """Return the released point, shape (d,), or without a budget the one the steps end at."""
        mechanism, clock = self._mechanism, self._run.clock
        if mechanism is None:
            w = await self._minimise(np.zeros(self._run.objective.dim))
            what, dim = "minimiser", len(w)
            exact = GaussianMessages(self._run.channel(), what=what, dim=dim, mu=None)
            return exact.release(w[np.newaxis])
        moved = self.penalties * self._run.first_model()
        with clock("noise"):
            b = mechanism.linear_term()
        w = await self._minimise(b - moved)
        with clock("noise"):
            return mechanism.release(w)

    async def _minimise(self, b: FloatArray) -> FloatArray:
        """Return x after the steps of `sensitivity.minimisation` from 0 with the linear term b.

        Every update has the roundings that are counted there.
        """
        run, rho = self._run, self._rho
        step, inverse, rest = 1.0 / self._curvature, 1.0 / (1.0 + rho), 1.0 - rho
        long = 1.0 / (rho * self._curvature)
        x = v = np.zeros(run.objective.dim)
        for _ in range(self.steps):
            y = (x + rho * v) * inverse
            sums = await run.sums(
                kernels.glm_gradient,
                y,
                loss=run.objective.phi,
                clip=run.plan.clip,
                grid=self._grid,
                silo_weight=self._silo_weight,
            )
            g = sums.sum(axis=0) + self.penalties * y + b
            x, v = y - step * g, rest * v + rho * y - long * g
        return x
