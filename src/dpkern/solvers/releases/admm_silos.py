"""Silos as the users of ADMM: f_j is the mean of silo j's clipped losses, its prox K inner steps.

    v_j = 2 z - u_j
    x_j = v_j;  K times:  x_j = x_j - eta (S_j(x_j) / n_j + (x_j - v_j) / gamma)
    u_j = u_j + 2 lam (x_j - z) = (1 - 2 lam) u_j + 2 lam z + 2 lam b_j,      b_j = x_j - v_j

The consensus needs sum_j p_j u_j. From a common v_j, replacing one of silo j's records changes x_j
by at most (2 C / n_j) E_K; E_K <= gamma is that of hidden local steps (`LocalRuns`) on a data part
of curvature 0 to L, plus 1 / gamma.

Silo trust: messages round_q(2 lam (x_j - v_j)) + Z_j, of sensitivity 2 lam (2 C / n_j) E_K plus
rounding terms; silos hold disjoint records. Central trust: V = sum_j round_q(p_j s_j) + Z with
u_j = c + s_j. The distance of hidden states on neighbouring data sets grows with the rounds, but is
at most e_j = (2 C / n_j) gamma sqrt(1 + gamma L / 2), plus terms for the error of the inner solve
and for rounding: the sensitivity is max_j p_j e_j (`LocalRuns`, with another bound for few steps).
Federated and central: the participants' changes of p_j s_j are summed, of sensitivity
max_j 4 lam p_j e_j, paid K times.
"""

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from dpkern import kernels
from dpkern._typing import FloatArray, IntArray
from dpkern.privacy.mechanisms.messages import GaussianMessages
from dpkern.privacy.sampling.participation import ParticipationSchedule
from dpkern.privacy.sensitivity.local_runs import LocalRuns, norm_bound
from dpkern.solvers.base.run import Run
from dpkern.solvers.releases.local_runs import silos_here


class InnerSolve:
    """K gradient steps of every silo towards the prox of its mean loss, from its own v_j.

    `remaining` bounds |x_j - prox(v_j)| / |v_j - prox(v_j)|, where |v_j - prox(v_j)| <= gamma C.
    """

    def __init__(self, run: Run, *, prox_step: float) -> None:
        objective = run.objective
        smoothness, self._anchor = objective.data_smoothness, 1.0 / prox_step
        if not math.isfinite(smoothness):
            raise ValueError(
                "users='silos' needs the smoothness of the loss for its inner steps: give the data "
                "a row_bound, and take a loss with a bounded second derivative"
            )
        self._run, self._eta = run, 1.0 / (smoothness + self._anchor)
        self.remaining = (1.0 - self._eta * self._anchor) ** run.plan.local_steps

    async def __call__(
        self, v: FloatArray, grid: FloatArray | None, silos: IntArray | None = None
    ) -> FloatArray:
        """Return b_j = x_j - v_j of the given silos, shape (m, d), and 0 for the others."""
        here = silos_here(self._run)
        if here is not None:
            silos = here if silos is None else np.intersect1d(silos, here)
        if silos is not None and not len(silos):
            return np.zeros_like(v)
        x = await self._run.sums(
            kernels.glm_local_descent,
            v,
            loss=self._run.objective.phi,
            clip=self._run.plan.clip,
            steps=self._run.plan.local_steps,
            step_size=self._eta,
            anchor=self._anchor,
            grid=grid,
            silos=silos,
        )
        return x - v

    def local_runs(self) -> LocalRuns:
        """Return the public description of the steps."""
        objective = self._run.objective
        return LocalRuns(
            clip=self._run.plan.clip,
            dim=objective.data.d,
            sizes=tuple(objective.data.sizes.tolist()),
            step_sizes=(self._eta,) * self._run.plan.local_steps,
            loss_smoothness=objective.phi.smoothness,
            loss_kappa=objective.phi.kappa,
            row_bound=objective.data.row_bound,
            l2=self._anchor,
        )


class _Silos(ABC):
    """Common base of both kinds of silos; see `HiddenSilos`."""

    trust: str
    what: tuple[str, str]  #: description of a release, without and with a schedule

    def __init__(
        self,
        run: Run,
        solve: InnerSolve,
        *,
        relaxation: float,
        mu: float | None,
        schedule: ParticipationSchedule | None,
    ) -> None:
        data = run.objective.data
        self._run, self._solve, self._schedule = run, solve, schedule
        self._keep, self._take = 1.0 - 2.0 * relaxation, 2.0 * relaxation
        self._weights = run.objective.shares()
        self._runs = None if mu is None else solve.local_runs()
        self._grids = None if self._runs is None else self._runs.grids
        self._mechanism = GaussianMessages(
            run.channel(self.trust),
            what=self.what[schedule is not None],
            dim=data.d,
            mu=mu,
            per_silo=self.trust == "silo",
            per_record=None if schedule is None else schedule.most,
        )
        self._public, self._hidden = np.zeros((data.m, data.d)), np.zeros((data.m, data.d))
        self._largest = 0.0
        self._sensitivity: tuple[float, ...] = ()

    def _bounds_from(self, v: FloatArray) -> dict[str, Any]:
        """Return sensitivity and bound of a round with v as the public part of the v_j.

        They are those of the largest |v_j| so far, and checked before any record is read.
        """
        if self._runs is None:
            return {}
        longest = v[np.argmax(np.sum(v * v, axis=1))]  # or one that is not finite
        start = norm_bound(longest, self._runs.state_bound)
        if start > self._largest:
            self._largest, self._sensitivity = start, self._sensitivities(self._runs, start)
        bound = self._scale() * self._runs.state_bound * (1.0 + 2.0**-40)
        return {"sensitivity": self._sensitivity, "bound": bound}

    @abstractmethod
    def _sensitivities(self, runs: LocalRuns, start: float) -> tuple[float, ...]:
        """Return the sensitivity of every silo's values."""

    @abstractmethod
    def _scale(self) -> float:
        """Return the bound of a value's norm, in units of `LocalRuns.state_bound`."""


class HiddenSilos(_Silos):
    """Silos with hidden states, of which the weighted mean is released.

    u_j = c_j + s_j with c_j public. Without a schedule V = sum_j round_q( p_j s_j ) + Z; with one,
    V is the sum of the participants' round_q( p_j (change of s_j) ) plus Z. The distance of hidden
    states on neighbouring data sets accumulates over the rounds; `LocalRuns.hidden_states` bounds
    it, including the error of the inner solve, for a relaxation of at most 1/2.
    """

    trust = "central"
    what = (
        "weighted mean of the silos' states, less its public part",
        "weighted sum of the participants' changes, less its public part",
    )

    async def __call__(self, t: int, zhat: FloatArray, z: FloatArray, lam: float) -> FloatArray:
        """Return sum_j p_j u_j by V, or zhat plus the released changes."""
        v, p, public, hidden = 2.0 * z - self._public, self._weights, self._public, self._hidden
        silos, bounds = None if self._schedule is None else self._schedule[t], self._bounds_from(v)
        b = await self._solve(v - hidden, self._grids, silos)
        self._public = _update_rows(silos, self._keep * public + self._take * z, public)
        self._hidden = _update_rows(silos, self._keep * hidden + self._take * b, hidden)
        values = self._hidden if silos is None else self._hidden - hidden
        with self._run.clock("noise"):
            released = self._mechanism.release(p[:, np.newaxis] * values, **bounds)
        if silos is None:
            return p @ self._public + released
        return zhat + p @ (self._public - public) + released

    def _sensitivities(self, runs: LocalRuns, start: float) -> tuple[float, ...]:
        return runs.hidden_states(
            start,
            keep=self._keep,
            take=self._take,
            weights=self._weights.tolist(),
            changes=self._schedule is not None,
        )

    def _scale(self) -> float:
        return 2.0 * float(self._weights.max())


class NoisySilos(_Silos):
    """Silos that add their own noise to their messages.

    A message is round_q( 2 lam b_j ) + Z_j. u_j is a sum of messages and public numbers, so that
    neighbouring data sets have the same v_j: the sensitivity is 2 lam (2 C / n_j) E_K plus rounding
    terms, in the rounds in which silo j participates.
    """

    trust = "silo"
    what = ("message of a silo",) * 2

    async def __call__(self, t: int, zhat: FloatArray, z: FloatArray, lam: float) -> FloatArray:
        """Return zhat plus the participants' changes."""
        v, states = 2.0 * z - self._public, self._public
        silos, bounds = None if self._schedule is None else self._schedule[t], self._bounds_from(v)
        b = await self._solve(v, self._grids, silos)
        with self._run.clock("noise"):
            messages = self._mechanism.release(self._take * b, **bounds)
        self._public = _update_rows(silos, states + self._take * (z - states) + messages, states)
        return zhat + self._weights @ (self._public - states)

    def _sensitivities(self, runs: LocalRuns, start: float) -> tuple[float, ...]:
        return runs.sensitivities(start, [self._take] * len(runs.sizes))

    def _scale(self) -> float:
        return self._take


def _update_rows(silos: IntArray | None, new: FloatArray, old: FloatArray) -> FloatArray:
    """Return `new` in the rows of the participating silos and `old` in the others."""
    if silos is None:
        return new
    rows = old.copy()
    rows[silos] = new[silos]
    return rows
