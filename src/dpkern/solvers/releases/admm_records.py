"""Records as the users of ADMM: every owner holds u_i, and the consensus needs their mean.

    x_i = prox_{gamma f_i}(2 z - u_i) = 2 z - u_i + t_i a_i,      |t_i a_i| <= gamma C
    u_i = u_i + 2 lam (x_i - z) = (1 - 2 lam) u_i + 2 lam z + 2 lam t_i a_i

a_i is the record's effective row and f_i its clipped loss. The three classes release mean(u) to
different readers, with different sensitivities.
"""

import math
from abc import ABC, abstractmethod
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpkern import kernels
from dpkern._typing import FloatArray
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.privacy.sampling.participation import ParticipationSchedule
from dpkern.solvers.base.plan import RunPlan
from dpkern.solvers.base.run import Run

# The length of all changes of a user together, as root of the sum of their squares, in units of the
# longest first change: shorter ones have less noise, longer ones follow the prox sooner, as
# measured in docs/proofs/changes.md.
_SHARE_OF_FIRST = 0.5


class Users(Protocol):
    """The users' update of a round."""

    async def __call__(self, t: int, zhat: FloatArray, z: FloatArray, lam: float) -> FloatArray:
        """Update the users of round t, make the release, and return the next zhat."""


class RecordUsers(ABC):
    """Users of which each is a record, with their states and the mechanism of their releases."""

    def __init__(
        self,
        run: Run,
        prox_step: float,
        state: kernels.ProxState,
        mechanism: GaussianSum,
        schedule: ParticipationSchedule | None = None,
    ) -> None:
        self._run, self._n, self._prox_step = run, run.objective.data.n, prox_step
        self._state, self._mechanism, self._schedule = state, mechanism, schedule

    @abstractmethod
    def _points(
        self, zhat: FloatArray, *, sigma: FloatArray | None, grid: FloatArray | None, **how: Any
    ) -> FloatArray:
        """Return zhat after each of some rounds, whose releases have this noise."""

    def all_rounds(self, zhat: FloatArray, lam: float, share: float) -> FloatArray:
        """Run all rounds without Python between them, and return the last zhat."""
        run, objective = self._run, self._run.objective
        how: dict[str, Any] = {
            "relaxation": lam,
            "l2": objective.l2,
            "l1": objective.l1,
            "penalty": objective.other,
            "penalize_intercept": objective.penalize_intercept,
        }
        users, bounds = None, np.zeros(run.plan.rounds + 1, dtype=np.int64)
        if self._schedule is not None:
            users, bounds = self._schedule.participants
        done = 0
        for steps in run.chunks(np.full(len(bounds) - 1, 2.0 * lam * self._prox_step), share):
            if users is not None:
                own = bounds[done : done + len(steps) + 1]
                how["rows"] = users[own[0] : own[-1]], own - own[0]
            compute = partial(self._points, zhat, rounds=len(steps), **how)
            points = self._mechanism.release_steps(len(steps), compute)
            run.record_rounds(np.vstack([zhat, points[:-1]]), points, steps, share)
            run.keep(objective.full_prox(points[-1], self._prox_step))
            zhat, done = points[-1], done + len(steps)
        return zhat

    def _participants(self, t: int) -> NDArray[np.int64] | None:
        """Return the users of round t; None means everybody."""
        return None if self._schedule is None else self._schedule[t]

    def _sweeps(
        self,
        grid: FloatArray | None,
        sigma: FloatArray | None = None,
        change_clip: float | None = None,
    ) -> kernels.PreparedSweep:
        objective = self._run.objective
        return kernels.PreparedSweep(
            objective.data,
            self._state,
            loss=objective.phi,
            clip=self._run.plan.clip,
            prox_step=self._prox_step,
            grid=None if grid is None else float(grid[0]),
            sigma=None if sigma is None else float(sigma[0]),
            change_clip=change_clip,
            n_threads=objective.n_threads,
        )


class HiddenUsers(RecordUsers):
    """Users whose states are hidden: a sum is released, with noise on it."""

    def __init__(self, *args: Any, change_clip: float | None = None) -> None:
        super().__init__(*args)
        self._sweep = self._sweeps(self._mechanism.grid, change_clip=change_clip)

    def _points(
        self, zhat: FloatArray, *, sigma: FloatArray | None, grid: FloatArray | None, **how: Any
    ) -> FloatArray:
        """Run some rounds with noise on their sums."""
        with self._run.clock("kernels"):
            std = None if sigma is None else float(sigma[0])
            return self._sweep.rounds(zhat, sigma=std, **how)


class CentralUsers(HiddenUsers):
    """All users participate in every round, and the mean of all states is released.

    The release is V = S + Z with S = sum_i round_q(s_i a_i), where u_i = c + s_i a_i: c is a
    function of earlier releases, and |s_i a_i| <= gamma C, so that S has sensitivity 2 gamma C.
    """

    def __init__(self, run: Run, prox_step: float, *, mu: float | None) -> None:
        data = run.objective.data
        mechanism = GaussianSum(
            run.channel("central"),
            what="sum of the users' states, less its public part",
            clip=bound(run, prox_step),
            dim=data.d,
            sizes=(data.n,),
            mu=mu,
        )
        state = kernels.ProxState.collapsed(data, np.zeros(data.d))
        super().__init__(run, prox_step, state, mechanism)

    async def __call__(self, t: int, zhat: FloatArray, z: FloatArray, lam: float) -> FloatArray:
        """Return mean(u) by S + Z."""
        with self._run.clock("kernels"):
            S = self._sweep(z, relaxation=lam)
        with self._run.clock("noise"):
            released = self._mechanism.release(S)
        return self._state.common + released / self._n


class SampledUsers(HiddenUsers):
    """Users participate by a public schedule, and the sum of their changes is released.

    The change of u_i is 2 lam (z - c_i), which is public, plus 2 lam (t_i - s_i) a_i, clipped to
    the norm c = lam gamma C / sqrt(K): the sensitivity is 2 c in the rounds of a record's user, of
    which there are K at most. What the clip leaves out stays in t_i - s_i, so that the user sends
    it later, and no fixed point moves (docs/proofs/changes.md). Without noise nothing is clipped.
    """

    def __init__(
        self,
        run: Run,
        prox_step: float,
        *,
        mu: float | None,
        schedule: ParticipationSchedule,
        relaxation: float,
    ) -> None:
        data = run.objective.data
        most = 4.0 if mu is None else _SHARE_OF_FIRST * 2.0 / math.sqrt(schedule.most)
        clip = bound(run, prox_step, most * relaxation)
        mechanism = GaussianSum(
            run.channel("central"),
            what="sum of the participants' changes, less its public part",
            clip=clip,
            dim=data.d,
            sizes=(schedule.users.shape[1],),
            mu=mu,
            per_record=schedule.most,
        )
        state = kernels.ProxState.per_user(data, np.zeros(data.d))
        own = None if mu is None else clip
        if own is not None:
            run.draw_no_conclusion()
        super().__init__(run, prox_step, state, mechanism, schedule, change_clip=own)

    async def __call__(self, t: int, zhat: FloatArray, z: FloatArray, lam: float) -> FloatArray:
        """Return zhat plus the sum of changes over n."""
        with self._run.clock("kernels"):
            S, public = self._sweep(z, relaxation=lam, rows=self._participants(t))
        with self._run.clock("noise"):
            released = self._mechanism.release(S)
        return zhat + (public + released) / self._n


class NoisyUsers(RecordUsers):
    """Users add their own noise to their messages, which everybody sees.

    A message is round_q(2 lam t_i a_i) + Z_i, of norm at most 2 lam gamma C without noise. The
    sensitivity is 4 lam gamma C for the messages of the replaced record's user, and 0 for all
    others. u_i is a sum of messages and public numbers.

    `mu` is the budget of one message, `sigma` a std in its place, and `summed` the number of
    messages of a single round of which only the sum is seen.
    """

    def __init__(
        self,
        run: Run,
        prox_step: float,
        *,
        relaxation: float,
        schedule: ParticipationSchedule | None,
        mu: float | None = None,
        sigma: float | None = None,
        summed: int | None = None,
        seen_by: str = "local",
    ) -> None:
        data = run.objective.data
        senders = data.n if schedule is None else schedule.users.shape[1]
        mechanism = GaussianSum(
            run.channel(seen_by),
            what="message of a user" if summed is None else "sum of the users' messages",
            clip=bound(run, prox_step, 2.0 * relaxation),
            dim=data.d,
            sizes=(1,) * (summed or 1),
            mu=mu,
            sigma=sigma,
            shares=summed is not None,
            per_record=None if schedule is None else schedule.most,
            draws=data.d * senders,
        )
        state = kernels.ProxState.public(data, np.zeros(data.d))
        super().__init__(run, prox_step, state, mechanism, schedule)
        self._sweep: kernels.PreparedSweep | None = None

    async def __call__(self, t: int, zhat: FloatArray, z: FloatArray, lam: float) -> FloatArray:
        """Return zhat plus the participants' changes over n."""
        users = self._participants(t)

        def messages(*, sigma: FloatArray | None, grid: FloatArray | None, rng: Any) -> FloatArray:
            with self._run.clock("kernels"):
                return self._prepared(grid, sigma)(z, relaxation=lam, rows=users, rng=rng)

        changes = self._mechanism.release_steps(1, messages)
        return zhat + changes / self._n

    def _points(
        self, zhat: FloatArray, *, sigma: FloatArray | None, grid: FloatArray | None, **how: Any
    ) -> FloatArray:
        """Run some rounds with noise on their messages."""
        with self._run.clock("kernels"):
            return self._prepared(grid, sigma).rounds(zhat, **how)

    def _prepared(self, grid: FloatArray | None, sigma: FloatArray | None) -> kernels.PreparedSweep:
        """Return the sweep, for which grid and sigma are the same in every round."""
        if self._sweep is None:
            self._sweep = self._sweeps(grid, sigma)
        return self._sweep


def at_most_half(plan: RunPlan, lam: float) -> None:
    """Raise ValueError for a relaxation with which the users' states could exceed their bound."""
    if lam > 0.5 and plan.clip < math.inf:
        raise ValueError(
            f"relaxation must be at most 1/2 where clipped sums are released, got {lam!r}: "
            "beyond it, what a record does to its user's state grows with the rounds"
        )


def bound(run: Run, prox_step: float, factor: float = 1.0) -> float:
    """Return factor gamma C, rounded as in the kernel that enforces this bound."""
    return factor * prox_step * run.plan.clip
