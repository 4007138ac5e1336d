"""The noisy fixed-point iteration, of which gradient descent and ADMM are instances.

Cyffers, Bellet, Basu, "From noisy fixed-point iterations to private ADMM for centralized and
federated learning", ICML 2023; algorithm 6 of Basu's slides on it. For an operator R and blocks
b = 1..B of u:

    u = 0
    for k = 1..rounds:
        for b = 1..B:
            u_b = u_b + rho_{k,b} lam_k ( R_b(u) + e + eta_{k,b} - u_b ),    P[rho_{k,b} = 1] = q
    return the model of u

e is the rounding error of R and eta the noise, which enters where R depends on the records.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from dpkern.privacy.sampling.participation import activate_blocks
from dpkern.solvers.base import AUTO, Count, Run, SolverResult, solver
from dpkern.solvers.base.options import Option, UpToOne
from dpkern.solvers.base.settings import relaxed
from dpkern.solvers.releases.operators import (
    Declared,
    block_sizes,
    check_operator,
    choose_operator,
    resolve_operator,
)

UNCHECKED = (
    "the sensitivity of the operator was declared by the caller, and so was that it depends on the "
    "records in no other way: neither can be checked"
)


@solver(
    trusts=("central",), federated=False, settings=relaxed, resolve=resolve_operator, on_card=True,
    error=(0.15, 0.84), seconds=(0.89, 32.0),
)  # fmt: skip
async def fixed_point(
    run: Run,
    *,
    operator: Annotated[str | Declared, Option(check=check_operator)] = "proximal_gradient",
    rounds: Count = AUTO,
    relaxation: float | Sequence[float] | NDArray[np.float64] | None = None,
    step_size: float | str = "auto",
    prox_step: float | str = "auto",
    blocks: int | Sequence[int] | None = None,
    activation: UpToOne = 1.0,
) -> SolverResult:
    """Noisy fixed-point iteration of an operator, with randomly activated blocks.

    Parameters
    ----------
    operator : {"proximal_gradient", "gradient", "coordinate", "admm"} or Declared
        R. "gradient": u - step_size grad J(u). "proximal_gradient": the same followed by the
        prox of nonsmooth penalties. "coordinate": the same with one block per coordinate, which
        is coordinate descent for `activation` = 1/d. "admm": the operator of Lions and Mercier,
        with the users' states as one block that is always active, which gives the iterates of
        `dpkern.solvers.admm`. Or a Python function with its sensitivity, a
        `dpkern.solvers.Declared`, which needs no clip norm.
    relaxation : float or sequence of rounds floats
        lam_k in (0, 1]; at most 1/2 for "admm" with a clip norm. By default 1/2 for "admm",
        else 1.
    step_size : float or "auto"
        Step size of the gradient operators. "auto" follows from public numbers and is at most
        1 / (L + l2), L = phi''max row_bound^2.
    prox_step : float or "auto"
        gamma of "admm"; "auto" follows from public numbers.
    blocks : int or sequence of int
        Number of consecutive blocks of u, whose sizes differ by at most one, or their sizes. One
        by default, d for "coordinate".
    activation : float
        Probability q in (0, 1] with which a block is active in a round. The activations are
        drawn in advance, independently of the records, and public.

    Notes
    -----
    Each of the K rounds with an active block, K being public, has one release to whoever sees the
    aggregate: the noisy sum of clipped gradients at u, std 2 C sqrt(K) / mu, in all coordinates
    since a block of a vector of norm C may have norm C; the noisy sum of the users' states, std
    2 gamma C sqrt(K) / mu; or V = round_q(clamp(R(u))) + Z of a declared R, std
    (D + q sqrt(d)) sqrt(K) / mu. u is a function of the releases and of public numbers.

    The algorithm's eta is -step_size Z / N for "gradient"; for "proximal_gradient" the prox follows
    this noise; for "admm" lam eta = Z / n on mean(u), while the u_i have no noise.

    History and callbacks have one entry for every round with an active block.
    """
    lam = np.broadcast_to(run.plan.arguments["relaxation"], rounds)
    sizes = block_sizes(run.plan, run.objective.data.d)
    active = activate_blocks(run.public, blocks=len(sizes), rounds=rounds, probability=activation)
    releases = int(np.count_nonzero(active.any(axis=1)))
    R = choose_operator(run, run.plan.mu_of_one(max(releases, 1)))

    if isinstance(operator, Declared) and run.plan.budget is not None:
        run.qualify(UNCHECKED)
    u = run.first_model()
    for k in run.numbered_rounds():
        if not active[k].any():
            continue
        rho = np.repeat(active[k], sizes)
        u_next, step = await R.relaxed(u, lam[k]), lam[k] * R.scale
        residual = (u - u_next) / step
        u = np.where(rho, u_next, u)
        run.record(k, R.model(u), step, residual)
    return run.result(R.model(u))
