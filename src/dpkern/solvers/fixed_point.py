"""The noisy fixed-point iteration, of which gradient descent and ADMM are instances.

Cyffers, Bellet, Basu, "From noisy fixed-point iterations to private ADMM for centralized and
federated learning", ICML 2023; algorithm 6 of Basu's slides on it. For an operator R and blocks
b = 1..B of u:

    u = 0
    for k = 1..rounds:
        for b = 1..B:
            u_b = u_b + rho_{k,b} lam_k ( R_b(u) + e + eta_{k,b} - u_b ),    P[rho_{k,b} = 1] = q
    return the model of u

e is the rounding error of R and eta the noise, which enters where R touches the records.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpkern._numbers import count, positive
from dpkern.data import SiloData
from dpkern.losses import Loss
from dpkern.privacy import Budget, NoiseStream
from dpkern.privacy.participation import activate_blocks
from dpkern.solvers._docs import documented
from dpkern.solvers._objective import Penalty
from dpkern.solvers._operators import (
    Declared,
    FromFunction,
    Gradient,
    LionsMercier,
    Operator,
    ProximalGradient,
)
from dpkern.solvers._result import SolverResult
from dpkern.solvers._run import Callback, Monitor, Run
from dpkern.solvers._users import at_most_half, refuse_non_convex

FloatArray = NDArray[np.float64]

BELIEVED = (
    "the sensitivity of the operator was declared by the caller, and so was that it depends on the "
    "records in no other way: neither can be checked"
)


@documented
def fixed_point(
    data: SiloData,
    *,
    operator: Literal["proximal_gradient", "gradient", "coordinate", "admm"]
    | Declared = "proximal_gradient",
    budget: Budget | None,
    clip: float | None = None,
    loss: str | Loss = "logistic",
    l2: float = 0.0,
    l1: float = 0.0,
    regularizer: Penalty = None,
    rounds: int = 300,
    relaxation: float | Sequence[float] | NDArray[np.float64] | None = None,
    step_size: float | Literal["auto"] = "auto",
    prox_step: float | Literal["auto"] = "auto",
    blocks: int | Sequence[int] | None = None,
    activation: float = 1.0,
    weights: Literal["size", "uniform"] = "size",
    trust: Literal["central"] = "central",
    calibration: Literal["sound"] = "sound",
    neighbours: Literal["replace_one"] = "replace_one",
    penalize_intercept: bool = True,
    rng: int | NoiseStream | None = None,
    n_threads: int | None = None,
    progress: bool = False,
    callback: Callback | None = None,
    monitor: Monitor = None,
) -> SolverResult:
    r"""Noisy fixed-point iteration of an operator, by blocks that are activated at random.

    Parameters
    ----------
    operator : {"proximal_gradient", "gradient", "coordinate", "admm"} or Declared
        R. "gradient": u - step_size grad J(u). "proximal_gradient": its prox, of l1 or of a
        regularizer that is not smooth. "coordinate": the same, every coordinate a block, so that
        `activation` = 1/d makes it coordinate descent. "admm": the operator of Lions and Mercier,
        the users' states one block, always active: the iterates of `dpkern.solvers.admm`. Or a
        Python function with its sensitivity, a `dpkern.solvers.Declared`.
    clip : float
        Bound C of one record's gradient in l2 norm; needed with a budget, else infinite. A declared
        operator does not use it.
    loss : str or Loss
        See `dpkern.losses`; a convex one for "admm".
    rounds : int
        Number of iterations.
    relaxation : float or sequence of rounds floats, optional
        lam_k in (0, 1]; at most 1/2 for "admm" with a clip norm. By default 1/2 for "admm", else 1.
    step_size : float or "auto"
        Of the gradient operators. "auto" = 1 / (L + l2), L = phi''max row_bound^2.
    prox_step : float or "auto"
        gamma of "admm"; "auto" is the same number.
    blocks : int or sequence of int, optional
        Consecutive blocks of u: how many, of sizes that differ by one at most, or their sizes. One
        by default, d for "coordinate".
    activation : float
        Probability q in (0, 1] with which a block is active in a round, drawn in advance, apart
        from the records: public.
    trust : {"central"}
        The aggregator is believed.
    calibration : {"sound"}
        The paper's formulas are those of its instances: see `gradient_descent` and `admm`.
    neighbours : {"replace_one"}
        Adding or removing a record is not offered here.
    callback : callable or None
        callback(round, release) after every round with an active block.

    Returns
    -------
    result : SolverResult
        Its history has one entry for every round with an active block.

    Raises
    ------
    TypeError, ValueError
        When an argument or a condition does not hold; the message names it.

    Notes
    -----
    Rounds with an active block, K of them and public, release once each, to whoever sees the
    aggregate: the noisy sum of clipped gradients at u, std 2 C sqrt(K) / mu, whole even where few
    blocks are active, as a block of a vector of norm C may have norm C; the noisy sum of the users'
    states, std 2 gamma C sqrt(K) / mu; or V = round_q(clamp(R(u))) + Z of a declared R, std
    (D + q sqrt(d)) sqrt(K) / mu. u is a function of the releases and of public numbers.

    The algorithm's eta is, for "gradient", -step_size Z / N; for "proximal_gradient" a prox stands
    between the two; for "admm" lam eta = Z / n on mean(u), the u_i themselves stay exact.
    """
    parameters = {name: value for name, value in locals().items() if name != "data"}
    declared = isinstance(operator, Declared)
    with Run("fixed_point", data, parameters, needs_clip=not declared) as run:
        if not declared:
            run.choose("operator", "proximal_gradient", "gradient", "coordinate", "admm")
        run.choose("trust", "central")
        run.choose("calibration", "sound")
        run.choose("neighbours", "replace_one")
        lam, sizes = _relaxations(run), _block_sizes(run)
        active = activate_blocks(
            run.stream, blocks=len(sizes), rounds=run.rounds, probability=_activation(run)
        )
        turns = int(np.count_nonzero(active.any(axis=1)))
        R = _operator(run, run.mu_of_one(max(turns, 1)))

        u = np.zeros(data.d)
        for k in run.numbered_rounds():
            if not active[k].any():
                continue
            rho = np.repeat(active[k], sizes)
            moved, step = R.relaxed(u, lam[k]), lam[k] * R.scale
            residual = (u - moved) / step
            u = np.where(rho, moved, u)
            run.record(k, R.model(u), step, residual)
        return run.result(
            R.model(u), trust=trust, notes=(BELIEVED,) if declared and run.budget else ()
        )


def _relaxations(run: Run) -> FloatArray:
    """lam_k of all rounds."""
    lions_mercier, value = run.parameters["operator"] == "admm", run.parameters["relaxation"]
    if value is None:
        value = 0.5 if lions_mercier else 1.0
    lam = np.asarray(value)
    if lam.dtype.kind not in "fiu":
        raise TypeError(f"relaxation is {value!r}; it must be a number or a sequence of numbers")
    if lam.shape not in ((), (run.rounds,)):
        raise ValueError(
            f"relaxation must be one number or {run.rounds}, one a round; got shape {lam.shape}"
        )
    if not (np.all(lam > 0.0) and np.all(lam <= 1.0)):
        raise ValueError("relaxation must lie in (0, 1]")
    if lions_mercier:
        at_most_half(run, float(lam.max()))
    run.resolve(relaxation=lam)
    return np.broadcast_to(lam, (run.rounds,)).astype(np.float64)


def _block_sizes(run: Run) -> NDArray[np.int64]:
    """Sizes of the consecutive blocks of u."""
    operator, blocks, d = run.parameters["operator"], run.parameters["blocks"], run.objective.data.d
    if operator == "admm":
        if blocks not in (None, 1) or run.parameters["activation"] != 1.0:
            raise ValueError(
                "operator='admm' has one block, always active: for users that take part in turn "
                "there are the modes of solver admm"
            )
        blocks = 1
    if blocks is None:
        blocks = d if operator == "coordinate" else 1
    if np.ndim(blocks):
        sizes = np.array([count("a block's size", size) for size in blocks], dtype=np.int64)
        if sizes.sum() != d:
            raise ValueError(f"blocks add up to {sizes.sum()}; they must to d = {d}")
        return sizes
    number = count("blocks", blocks)
    if number > d:
        raise ValueError(f"blocks is {number}; there are d = {d} coordinates")
    run.parameters["blocks"] = number
    return np.diff(np.arange(number + 1) * d // number)


def _activation(run: Run) -> float:
    q = positive("activation", run.parameters["activation"])
    if q > 1.0:
        raise ValueError(f"activation is {q!r}; it must be a probability")
    return q


def _operator(run: Run, mu: float | None) -> Operator:
    """R with a budget mu for every release."""
    operator = run.parameters["operator"]
    if isinstance(operator, Declared):
        run.parameters["operator"] = {"name": operator.name, "sensitivity": operator.sensitivity}
        return FromFunction(run, declared=operator, mu=mu)
    if operator == "admm":
        run.choose("weights", "size")
        refuse_non_convex(run)
        return LionsMercier(run, prox_step=run.number_or_auto("prox_step"), mu=mu)
    if operator == "gradient" and run.objective.proximal is not None:
        g = run.objective.proximal[0].name
        raise ValueError(f"operator='gradient' has no prox, by which {g!r} acts: take another")
    step = run.number_or_auto("step_size")
    return (Gradient if operator == "gradient" else ProximalGradient)(run, step=step, mu=mu)
