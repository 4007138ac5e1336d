"""ADMM over records: proxes of clipped losses, and sweeps that update the auxiliary variables."""

import numpy as np
from numpy.typing import ArrayLike

import dpkern.kernels._arguments as checked
from dpkern import _core
from dpkern._numbers import positive
from dpkern._threads import resolve_threads
from dpkern.kernels._arguments import Data, FloatArray, IntArray, Random, Rows
from dpkern.kernels._sweeps import PreparedSweep, ProxState, convex, prox_bound
from dpkern.models.losses import Loss
from dpkern.models.terms import Term


def loss_prox(
    data: Data,
    V: ArrayLike,
    gamma: float,
    *,
    loss: str | Loss,
    clip: float,
    out: FloatArray | None = None,
    n_threads: int | None = None,
) -> tuple[FloatArray, FloatArray]:
    r"""Return the prox of every record's clipped loss, argmin_x gamma f_i(x) + |x - v_i|^2 / 2.

    f_i(x) = phi(y_i, a_i . x) with a_i the effective row, and x_i = v_i + t_i a_i with t_i the
    solution of t = -gamma phi'(y_i, a_i . v_i + t |a_i|^2), clamped to +-gamma C' / |a_i|.

    Parameters
    ----------
    data, loss, clip, n_threads
        As in `dpkern.kernels`, C being the clip norm of a record's gradient; the loss must be
        convex, and derivatives that are not finite count as 0.
    V : array_like, shape (N, d)
        One point per record.
    gamma : float
        Step, positive and finite.
    out : ndarray, shape (N, d), optional
        As in `dpkern.kernels`, for X; `V` itself, or without overlap with it.

    Returns
    -------
    X : ndarray, shape (N, d)
        Float64, in record order; not private.
    t : ndarray, shape (N,)
        Float64 displacements along the effective rows; not private.

    Notes
    -----
    A clamped increasing function is increasing, so that this is the prox of a convex, C-Lipschitz
    loss, as for `glm_gradient`, whose displacement is at most gamma C: C' = C (1 - (d + 16) 2^-52),
    and the clamp is the last operation on t. Before it, the relative error of t is at most 1e-12,
    plus the effect of the rounding of a_i . v_i.
    """
    checked.require_data(data)
    points = checked.finite_array("V", V, (data.n, data.d))
    gamma = positive("gamma", gamma)
    compiled = checked.compiled_loss(convex(loss))
    bound = prox_bound(gamma, positive("clip", clip, or_infinite=True), "gamma")
    out = checked.output(out, (data.n, data.d))
    checked.require_no_overlap("out", out, "V", points)
    t = np.empty(data.n)
    threads = resolve_threads(n_threads, data.n * data.d)
    _core.loss_prox(data, points, gamma, compiled, bound, out, t, threads)
    return out, t


def prox_sweep(
    data: Data,
    state: ProxState,
    z: ArrayLike,
    *,
    loss: str | Loss,
    clip: float,
    prox_step: float,
    relaxation: float,
    grid: float | None = None,
    sigma: float | None = None,
    change_clip: float | None = None,
    rows: IntArray | None = None,
    rng: Random = None,
    n_threads: int | None = None,
) -> FloatArray | tuple[FloatArray, FloatArray]:
    r"""Run one ADMM sweep over records: v_i = 2 z - u_i, u_i += 2 lam (prox_i(v_i) - z).

    With gamma = `prox_step`, lam = `relaxation` and t_i as in `loss_prox`, the new state is
    (1 - 2 lam) u_i + 2 lam z + 2 lam t_i a_i. `state` is updated in place.

    Parameters
    ----------
    data, loss, clip, rng, n_threads
        As in `loss_prox` and `dpkern.kernels`. Every record is a user, whatever its silo. Only a
        call with `sigma` uses a release of a stream.
    state : ProxState
        Collapsed, per user or public. It is undefined after an interrupted sweep.
    z : array_like, shape (d,)
        The consensus point, finite.
    prox_step : float
        gamma, positive and finite.
    relaxation : float
        lam in (0, 1].
    grid : float, optional
        Power of two q with max(n, 2) b <= 2^52 q, b the bound of one vector (see Returns) and n the
        number of vectors that are summed, 1 for a public state. None means the finest one. With
        noise, the mechanism passes the grid of the noise.
    sigma : float, optional
        For a public state, the std of the Gaussian noise on every message, finite and >= 0. None
        means no noise.
    change_clip : float, optional
        For a per-user state, the largest norm b of a record's change, positive and finite. None
        means 4 lam gamma C, which clips nothing where lam <= 1/2.
    rows : ndarray, shape (k,), optional
        Int64 indices of the records to sweep, distinct and increasing; all by default. Not for a
        collapsed state.

    Returns
    -------
    S : ndarray, shape (d,)
        For a collapsed state: sum_i round_q(s_i a_i) with the new scales
        s_i = clamp((1 - 2 lam) s_i + 2 lam t_i, +-b' / |a_i|), b = gamma C. The mean of u is
        ``state.common + S / N``.
    S, P : ndarrays, shape (d,)
        For a per-user state: S = sum_i round_q(f_i a_i) with
        f_i = clamp(2 lam (t_i - s_i), +-b' / |a_i|), b = `change_clip`, and the public
        P = sum_i 2 lam (z - common_i), in plain floating point. The change of sum_i u_i is P + S,
        s_i moves by f_i.
    M : ndarray, shape (d,)
        For a public state: the change of sum_i u_i, in plain floating point. Every record sends
        round_q(f_i a_i) + Z_i, f_i = clamp(2 lam t_i, +-b' / |a_i|) with b = 2 lam gamma C, and u_i
        becomes (1 - 2 lam) u_i + 2 lam z plus this message.

    Notes
    -----
    - Sensitivity: replacing one record, with equal states of all others and equal z, changes S, or
      a message, by at most 2 b in l2 norm, exactly, for the doubles returned: each vector has norm
      at most b and depends on its own record and state only, for any rounding error of t_i; b' is b
      less a margin for rounding (see `glm_gradient`).
    - P is a function of the z and of the participants of earlier sweeps.
    - Z_i are draws as in `gaussian`, with record i as the silo and their own purpose.
    - This is the iteration of [1]_ with a different place of the noise. For lam <= 1/2 every u_i
      stays within gamma C of a point that does not depend on its record.

    References
    ----------
    .. [1] Cyffers, Bellet, Basu, "From noisy fixed-point iterations to private ADMM for centralized
       and federated learning", ICML 2023, algorithms 1 to 3.
    """
    sweep = PreparedSweep(
        data,
        state,
        loss=loss,
        clip=clip,
        prox_step=prox_step,
        grid=grid,
        sigma=sigma,
        change_clip=change_clip,
        n_threads=n_threads,
    )
    return sweep(z, relaxation=relaxation, rows=rows, rng=rng)


def admm_rounds(
    data: Data,
    state: ProxState,
    zhat: ArrayLike,
    *,
    rounds: int,
    loss: str | Loss,
    clip: float,
    prox_step: float,
    relaxation: float,
    l2: float = 0.0,
    l1: float = 0.0,
    penalty: str | Term | None = None,
    penalize_intercept: bool = True,
    grid: float | None = None,
    sigma: float | None = None,
    change_clip: float | None = None,
    rows: Rows | None = None,
    rng: Random = None,
    n_threads: int | None = None,
) -> FloatArray:
    r"""Run rounds of private consensus ADMM over records.

    A round is z = prox_{gamma r}(zhat), a sweep at z, and zhat = mean_i u_i, where
    r(x) = (l2/2) |x|^2 + l1 |x|_1 + g(x).

    Parameters
    ----------
    data, state, loss, clip, prox_step, relaxation, change_clip, n_threads
        As in `prox_sweep`.
    zhat : array_like, shape (d,)
        Before the first round, finite.
    rounds : int
        At least 1.
    l2, l1 : float
        Finite and at least 0.
    penalty : str or Term, optional
        g, a penalty or a constraint with a prox. The prox of l1 is applied before that of g.
    penalize_intercept : bool
        Whether r acts on the intercept too.
    grid : float, optional
        As in `prox_sweep`, for the round with the most records.
    sigma : float, optional
        Std of the Gaussian noise, finite and >= 0: on S of every round, or, for a public state, on
        every message. None means no noise.
    rows : (indices, bounds), optional
        Records of the rounds: of round t indices[bounds[t]:bounds[t + 1]], distinct and increasing.
        Int64, of shapes (k,) and (rounds + 1,). Not for a collapsed state.
    rng : None, int >= 0 or NoiseStream
        As in `dpkern.kernels`. Only a call with `sigma` uses a stream: a release for every round.

    Returns
    -------
    points : ndarray, shape (rounds, d)
        zhat after every round.

    Notes
    -----
    The points are post-processing of the noisy sums, or of the messages, whose sensitivities are
    stated in `prox_sweep`. Bits are those of `prox`, `prox_sweep` and `gaussian` round by round,
    with zhat = common + S / N, zhat + (P + S) / N or zhat + M / N.

    A zhat that overflows raises ValueError, and those before it are lost.
    """
    public = isinstance(state, ProxState) and state.scale is None
    sweep = PreparedSweep(
        data,
        state,
        loss=loss,
        clip=clip,
        prox_step=prox_step,
        grid=grid,
        sigma=sigma if public else None,
        change_clip=change_clip,
        n_threads=n_threads,
    )
    return sweep.rounds(
        zhat,
        rounds=rounds,
        relaxation=relaxation,
        l2=l2,
        l1=l1,
        penalty=penalty,
        penalize_intercept=penalize_intercept,
        sigma=None if public else sigma,
        rows=rows,
        rng=rng,
    )
