"""One solver per file, and the table of their names."""

from collections.abc import Sequence
from typing import Any, cast

from dpkern.data import SiloData
from dpkern.privacy import Budget
from dpkern.solvers.admm import admm
from dpkern.solvers.base.declaration import Solver, shared_documentation, shared_signature
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.base.options import did_you_mean
from dpkern.solvers.base.result import SolverResult, load
from dpkern.solvers.double_noise_newton import double_noise_newton
from dpkern.solvers.federated_gd import federated_gd
from dpkern.solvers.fixed_point import fixed_point
from dpkern.solvers.gradient_descent import gradient_descent
from dpkern.solvers.local_newton import local_newton
from dpkern.solvers.local_sgd import local_sgd
from dpkern.solvers.many import Results, run_many
from dpkern.solvers.minibatch_sgd import minibatch_sgd
from dpkern.solvers.output_perturbation import output_perturbation
from dpkern.solvers.prox_pl_svrg import prox_pl_svrg
from dpkern.solvers.prox_sgd import prox_sgd
from dpkern.solvers.prox_svrg import prox_svrg
from dpkern.solvers.releases.operators import Declared
from dpkern.solvers.spider import spider
from dpkern.solvers.wd_dp import wd_dp

__all__ = [
    "SOLVERS",
    "Declared",
    "Objective",
    "Results",
    "SolverResult",
    "admm",
    "double_noise_newton",
    "federated_gd",
    "fixed_point",
    "gradient_descent",
    "load",
    "local_newton",
    "local_sgd",
    "minibatch_sgd",
    "output_perturbation",
    "prox_pl_svrg",
    "prox_sgd",
    "prox_svrg",
    "solve",
    "solve_many",
    "spider",
    "wd_dp",
]

SOLVERS: dict[str, Solver] = {
    solver.__name__: solver
    for solver in (
        gradient_descent,
        federated_gd,
        wd_dp,
        output_perturbation,
        local_newton,
        double_noise_newton,
        admm,
        fixed_point,
        prox_sgd,
        prox_svrg,
        prox_pl_svrg,
        spider,
        minibatch_sgd,
        local_sgd,
    )
}


def solve(name: str, data: SiloData, **arguments: Any) -> SolverResult:
    return _solver(name)(data, **arguments)


def _solver(name: str) -> Solver:
    if name not in SOLVERS:
        raise ValueError(
            f"name must be one of {', '.join(SOLVERS)}, got {name!r}{did_you_mean(name, SOLVERS)}"
        )
    return SOLVERS[name]


def solve_many(
    name: str,
    data: SiloData,
    *,
    budgets: Budget | Sequence[Budget | None] | None,
    draws: int = 1,
    rng: int | Sequence[int] | None = None,
    **arguments: Any,
) -> Results:
    """Run a solver many times on the same records, in fewer passes over them.

    All runs advance in lock-step, and gradients at up to 32 models are computed in one pass over
    the records. This serves the gradients of linear models on all records, in `gradient_descent`,
    `federated_gd` with one local step, `minibatch_sgd` with full batches and the Newton methods;
    every other run is made as by itself.

    Parameters
    ----------
    name : str
        The solver.
    data : SiloData
        N records in m silos.
    budgets : Budget, None or sequence of these
        Budgets of one run.
    draws : int
        Number of runs with each combination of settings.
    rng : int, sequence of int or None
        None is the operating system's entropy. An int is the seed of a seed for every run; a
        sequence holds one seed for every run.
    **arguments
        As in `solve`. An argument that is a list varies: there is a run for every combination of
        the values of all lists. One value that is a sequence, such as the step size of every round,
        is a tuple or an array. A callback and a progress bar are not offered.

    Returns
    -------
    results : Results
        One result per run, budgets varying slowest and draws fastest. Every result, with its
        certificate, is the one that `solve` gives with the same seed; `results.privacy` is the
        certificate of all of them together, since each run reads the same records.

    Raises
    ------
    TypeError, ValueError
        When an argument or a condition does not hold; arguments are checked before any release.

    Examples
    --------
    >>> runs = dpkern.solve_many(
    ...     "gradient_descent", data, clip=[0.5, 1.0], draws=3,
    ...     budgets=[dpkern.Budget(epsilon=e, delta=1e-5) for e in (0.5, 1.0)],
    ... )
    >>> print(runs)
    """
    return run_many(_solver(name), data, budgets=budgets, draws=draws, rng=rng, arguments=arguments)


solve.__doc__ = shared_documentation(SOLVERS)
cast(Any, solve).__signature__ = shared_signature()
