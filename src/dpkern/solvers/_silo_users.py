"""Silos as the users of ADMM: f_j is the mean of silo j's clipped losses, its prox K steps.

    v_j = 2 z - u_j
    x_j = v_j;  K times:  x_j = x_j - eta (S_j(x_j) / n_j + (x_j - v_j) / gamma)
    u_j = u_j + 2 lam (x_j - z) = (1 - 2 lam) u_j + 2 lam z + 2 lam b_j,      b_j = x_j - v_j

What counts is sum_j p_j u_j. One of silo j's records moves x_j by (2 C / n_j) E_K at most, from a
common v_j; E_K is that of hidden local steps (`dpkern.privacy.LocalRuns`) on a data part of
curvature 0 to L with 1 / gamma added, and so at most gamma.
"""

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpkern import kernels
from dpkern.privacy.local_runs import LocalRuns, norm_bound
from dpkern.privacy.mechanisms.messages import GaussianMessages
from dpkern.privacy.participation import ParticipationSchedule
from dpkern.solvers._run import Run

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class InnerSolve:
    """K steps of every silo to the prox of its own mean loss, each from its own v_j.

    Parameters
    ----------
    run : Run
        Gives objective, clip norm and local_steps K.
    prox_step : float
        gamma.

    Attributes
    ----------
    remaining : float
        |x_j - prox(v_j)| as a share of |v_j - prox(v_j)| <= gamma C, at most.

    Raises
    ------
    ValueError
        Without a row bound or a bounded second derivative, on which the steps rest.
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
        self.remaining = (1.0 - self._eta * self._anchor) ** run.local_steps

    def __call__(
        self, v: FloatArray, grid: FloatArray | None, silos: IntArray | None = None
    ) -> FloatArray:
        """b_j = x_j - v_j of the silos, shape (m, d), from v_j, shape (m, d); of the others 0."""
        objective = self._run.objective
        with self._run.clock("kernels"):
            x = kernels.glm_local_descent(
                objective.data,
                v,
                loss=objective.phi,
                clip=self._run.clip,
                steps=self._run.local_steps,
                step_size=self._eta,
                anchor=self._anchor,
                grid=grid,
                silos=silos,
                n_threads=objective.n_threads,
            )
        b: FloatArray = x - v
        return b

    def described(self) -> LocalRuns:
        """What is public about the steps."""
        objective = self._run.objective
        return LocalRuns(
            clip=self._run.clip,
            dim=objective.data.d,
            sizes=tuple(objective.data.sizes.tolist()),
            step_sizes=(self._eta,) * self._run.local_steps,
            loss_smoothness=objective.phi.smoothness,
            loss_kappa=objective.phi.kappa,
            row_bound=objective.data.row_bound,
            l2=self._anchor,
        )


class _Silos(ABC):
    """What both kinds of silos hold; see `HiddenSilos`."""

    trust: str
    what: tuple[str, str]  #: of a release, of all silos and of a schedule's

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
        self._runs = None if mu is None else solve.described()
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

    def _proved(self, v: FloatArray) -> dict[str, Any]:
        """Sensitivity and bound of a round in which silos start at v, less what they hide.

        Those of the longest v so far. Refused before anything reads a record, where a condition
        does not hold.
        """
        if self._runs is None:
            return {}
        farthest = v[np.argmax(np.sum(v * v, axis=1))]  # or one that is not finite
        start = norm_bound(farthest, self._runs.state_bound)
        if start > self._largest:
            self._largest, self._sensitivity = start, self._parted(self._runs, start)
        bound = self._scale() * self._runs.state_bound * (1.0 + 2.0**-40)
        return {"sensitivity": self._sensitivity, "bound": bound}

    @abstractmethod
    def _parted(self, runs: LocalRuns, start: float) -> tuple[float, ...]:
        """How far the values of neighbours part, for every silo."""

    @abstractmethod
    def _scale(self) -> float:
        """Values are at most this times `LocalRuns.state_bound` long."""


class HiddenSilos(_Silos):
    """Silos whose states nobody sees, the weighted mean of them released as a whole.

    u_j = c_j + s_j with c_j public. All in every round: V = sum_j round_q( p_j s_j ) + Z. By a
    schedule: V = sum of the participants' round_q( p_j (s_j - s_j before) ) + Z. Hidden states of
    neighbours part, and each round takes them further; how far they can come, what the inner solve
    leaves of the way to the prox included, is `LocalRuns.hidden_states`.

    Parameters
    ----------
    run : Run
        Gives objective, ledger and stream.
    solve : InnerSolve
        The users' inner solve.
    relaxation : float
        lam, at most 1/2 with a clip norm.
    mu : float or None
        Budget of one release.
    schedule : ParticipationSchedule or None
        Who takes part when; None is everybody in every round.
    """

    trust = "central"
    what = (
        "weighted mean of the silos' states, less its public part",
        "weighted sum of the participants' changes, less its public part",
    )

    def __call__(self, t: int, zhat: FloatArray, z: FloatArray, lam: float) -> FloatArray:
        """sum_j p_j u_j from V, or zhat moved by it."""
        v, p, public, hidden = 2.0 * z - self._public, self._weights, self._public, self._hidden
        who, proved = None if self._schedule is None else self._schedule[t], self._proved(v)
        b = self._solve(v - hidden, self._grids, who)
        self._public = _of(who, self._keep * public + self._take * z, public)
        self._hidden = _of(who, self._keep * hidden + self._take * b, hidden)
        values = self._hidden if who is None else self._hidden - hidden
        with self._run.clock("noise"):
            released = self._mechanism.release(p[:, np.newaxis] * values, **proved)
        if who is None:
            return p @ self._public + released
        return zhat + p @ (self._public - public) + released

    def _parted(self, runs: LocalRuns, start: float) -> tuple[float, ...]:
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
    """Silos that add their own noise to what they send, and whose messages are seen.

    A message is round_q( 2 lam b_j ) + Z_j. u_j is a sum of messages and public numbers, so that
    v_j is the same for neighbours: they part by 2 lam (2 C / n_j) E_K and float terms, in the
    rounds in which silo j takes part.

    Parameters
    ----------
    run, solve, relaxation, mu, schedule
        As for `HiddenSilos`.
    """

    trust = "silo"
    what = ("message of a silo",) * 2

    def __call__(self, t: int, zhat: FloatArray, z: FloatArray, lam: float) -> FloatArray:
        """Zhat moved by the participants' changes."""
        v, states = 2.0 * z - self._public, self._public
        who, proved = None if self._schedule is None else self._schedule[t], self._proved(v)
        b = self._solve(v, self._grids, who)
        with self._run.clock("noise"):
            messages = self._mechanism.release(self._take * b, **proved)
        self._public = _of(who, states + self._take * (z - states) + messages, states)
        return zhat + self._weights @ (self._public - states)

    def _parted(self, runs: LocalRuns, start: float) -> tuple[float, ...]:
        return runs.sensitivities(start, [self._take] * len(runs.sizes))

    def _scale(self) -> float:
        return self._take


def _of(who: IntArray | None, moved: FloatArray, before: FloatArray) -> FloatArray:
    """What the participants' rows move to; the others stay."""
    if who is None:
        return moved
    rows = before.copy()
    rows[who] = moved[who]
    return rows
