"""The users' half of ADMM: every record's owner holds u_i, and the mean of them is what counts.

    x_i = prox_{gamma f_i}(2 z - u_i) = 2 z - u_i + t_i a_i,      |t_i a_i| <= gamma C
    u_i = u_i + 2 lam (x_i - z) = (1 - 2 lam) u_i + 2 lam z + 2 lam t_i a_i

a_i is the record's effective row and f_i its clipped loss. Three ways to learn mean(u), which
differ in who sees what, and in what one record can change of it.
"""

import math
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpkern import kernels
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.privacy.participation import ParticipationSchedule
from dpkern.solvers._run import Run

FloatArray = NDArray[np.float64]


class Users(Protocol):
    """A round of the users: zhat, z -> the next zhat."""

    def __call__(self, t: int, zhat: FloatArray, z: FloatArray, lam: float) -> FloatArray:
        """Advance the users of round t and release what moves zhat."""


class CentralUsers:
    """All users in every round, their mean released as a whole.

    V = S + Z with S = sum_i round_q(s_i a_i), where u_i = c + s_i a_i: c is a function of earlier
    releases and s_i a_i of norm gamma C at most, so replacing a record moves S by 2 gamma C.

    Parameters
    ----------
    run : Run
        Gives objective, clip norm, ledger and stream.
    prox_step : float
        gamma.
    mu : float or None
        Budget of one release.
    """

    def __init__(self, run: Run, *, prox_step: float, mu: float | None) -> None:
        data = run.objective.data
        self._run, self._n = run, data.n
        self._mechanism = GaussianSum(
            run.channel("central"),
            what="sum of the users' states, less its public part",
            clip=bound(run, prox_step),
            dim=data.d,
            sizes=(data.n,),
            mu=mu,
        )
        state = kernels.ProxState.collapsed(data, np.zeros(data.d))
        self._common = state.common
        self._sweep = _sweeps(run, state, prox_step, grid=self._mechanism.grid)

    def __call__(self, t: int, zhat: FloatArray, z: FloatArray, lam: float) -> FloatArray:
        """mean(u) from S + Z."""
        with self._run.clock("kernels"):
            S = self._sweep(z, relaxation=lam)
        with self._run.clock("noise"):
            released = self._mechanism.release(S)
        return self._common + released / self._n


class SampledUsers:
    """The users of a public schedule, the sum of their changes released.

    The change of u_i is 2 lam (z - c_i), public, and 2 lam (t_i - s_i) a_i, of norm 4 lam gamma C
    at most: replacing a record moves the sum by 8 lam gamma C in the rounds that it takes part in.

    Parameters
    ----------
    run, prox_step, mu
        As for `CentralUsers`.
    schedule : ParticipationSchedule
        Who takes part when.
    relaxation : float
        lam.
    """

    def __init__(
        self,
        run: Run,
        *,
        prox_step: float,
        mu: float | None,
        schedule: ParticipationSchedule,
        relaxation: float,
    ) -> None:
        data = run.objective.data
        self._run, self._n, self._schedule = run, data.n, schedule
        self._mechanism = GaussianSum(
            run.channel("central"),
            what="sum of the participants' changes, less its public part",
            clip=bound(run, prox_step, 4.0 * relaxation),
            dim=data.d,
            sizes=(schedule.users.shape[1],),
            mu=mu,
            per_record=schedule.most,
        )
        state = kernels.ProxState.per_user(data, np.zeros(data.d))
        self._sweep = _sweeps(run, state, prox_step, grid=self._mechanism.grid)

    def __call__(self, t: int, zhat: FloatArray, z: FloatArray, lam: float) -> FloatArray:
        """Zhat moved by the changes' sum over n."""
        with self._run.clock("kernels"):
            S, public = self._sweep(z, relaxation=lam, rows=self._schedule[t])
        with self._run.clock("noise"):
            released = self._mechanism.release(S)
        return zhat + (public + released) / self._n


class NoisyUsers:
    """Users that add their own noise to what they send, and that everybody hears.

    A message is round_q(2 lam t_i a_i) + Z_i, of norm 2 lam gamma C at most before its noise:
    replacing a record moves its own messages by 4 lam gamma C and nobody else's. u_i is a sum of
    messages and public numbers.

    Parameters
    ----------
    run, prox_step, relaxation
        As for `SampledUsers`.
    schedule : ParticipationSchedule or None
        Who takes part when; None is everybody in every round.
    mu : float, optional
        Budget of one message.
    sigma : float, optional
        In its place, the deviation of the noise on a message.
    summed : int, optional
        Only the sum of so many messages is seen, and of no more than one round.
    seen_by : {"local", "central"}
        Who sees them, or their sum: for the ledger.
    """

    def __init__(
        self,
        run: Run,
        *,
        prox_step: float,
        relaxation: float,
        schedule: ParticipationSchedule | None,
        mu: float | None = None,
        sigma: float | None = None,
        summed: int | None = None,
        seen_by: str = "local",
    ) -> None:
        data = run.objective.data
        self._run, self._n, self._schedule = run, data.n, schedule
        senders = data.n if schedule is None else schedule.users.shape[1]
        self._mechanism = GaussianSum(
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
        self._prepare = partial(_sweeps, run, state, prox_step)
        self._sweep: kernels.PreparedSweep | None = None

    def __call__(self, t: int, zhat: FloatArray, z: FloatArray, lam: float) -> FloatArray:
        """Zhat moved by the participants' changes over n."""
        users = None if self._schedule is None else self._schedule[t]

        def messages(*, sigma: FloatArray | None, grid: FloatArray | None, rng: Any) -> FloatArray:
            with self._run.clock("kernels"):
                if self._sweep is None:  # both are the mechanism's own in every round
                    self._sweep = self._prepare(grid=grid, sigma=sigma)
                return self._sweep(z, relaxation=lam, rows=users, rng=rng)

        moved = self._mechanism.release_steps(1, messages)
        return zhat + moved / self._n


def refuse_non_convex(run: Run) -> None:
    """A prox is of a convex loss."""
    loss = run.objective.phi
    if not loss.convex:
        raise ValueError(
            f"{run.solver} needs a convex loss for its prox, which {loss.name!r} is not"
        )


def at_most_half(run: Run, lam: float) -> None:
    """Refuse a relaxation with which the users' states outgrow what they are clamped to."""
    if lam > 0.5 and run.clip < math.inf:
        raise ValueError(
            f"relaxation is {lam!r}; with a clip norm it must be at most 1/2 where sums are "
            "released: beyond, what a record does to its user's state grows with the rounds"
        )


def bound(run: Run, prox_step: float, factor: float = 1.0) -> float:
    """factor gamma C, by the roundings with which the kernel computes what it keeps to."""
    return factor * prox_step * run.clip


def _sweeps(
    run: Run,
    state: kernels.ProxState,
    prox_step: float,
    *,
    grid: FloatArray | None,
    sigma: FloatArray | None = None,
) -> kernels.PreparedSweep:
    objective = run.objective
    return kernels.PreparedSweep(
        objective.data,
        state,
        loss=objective.phi,
        clip=run.clip,
        prox_step=prox_step,
        grid=None if grid is None else float(grid[0]),
        sigma=None if sigma is None else float(sigma[0]),
        n_threads=objective.n_threads,
    )
