"""One solver per file, and the table of their names."""

from typing import Any, cast

from dpkern.data import SiloData
from dpkern.party import Remote
from dpkern.solvers.admm import admm
from dpkern.solvers.base import many
from dpkern.solvers.base.automatic import named_solver
from dpkern.solvers.base.declaration import Solver, shared_documentation, shared_signature
from dpkern.solvers.base.many import Results
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.base.result import SolverResult, load
from dpkern.solvers.double_noise_newton import double_noise_newton
from dpkern.solvers.federated_gd import federated_gd
from dpkern.solvers.fixed_point import fixed_point
from dpkern.solvers.gradient_descent import gradient_descent
from dpkern.solvers.local_newton import local_newton
from dpkern.solvers.local_sgd import local_sgd
from dpkern.solvers.localized_sgd import localized_sgd
from dpkern.solvers.minibatch_sgd import minibatch_sgd
from dpkern.solvers.newton_inference import newton_inference
from dpkern.solvers.objective_perturbation import objective_perturbation
from dpkern.solvers.output_perturbation import output_perturbation
from dpkern.solvers.prox_pl_svrg import prox_pl_svrg
from dpkern.solvers.prox_sgd import prox_sgd
from dpkern.solvers.prox_svrg import prox_svrg
from dpkern.solvers.releases.operators import Declared
from dpkern.solvers.ridge import ridge
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
    "localized_sgd",
    "minibatch_sgd",
    "newton_inference",
    "objective_perturbation",
    "output_perturbation",
    "prox_pl_svrg",
    "prox_sgd",
    "prox_svrg",
    "ridge",
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
        objective_perturbation,
        local_newton,
        double_noise_newton,
        newton_inference,
        ridge,
        admm,
        fixed_point,
        prox_sgd,
        prox_svrg,
        prox_pl_svrg,
        spider,
        minibatch_sgd,
        local_sgd,
        localized_sgd,
    )
}


def _named(
    name: str, data: SiloData | Remote, arguments: dict[str, Any]
) -> tuple[Solver, dict[str, Any]]:
    """Return the solver with its arguments, which only "auto" and standard errors choose."""
    if isinstance(name, str) and name in SOLVERS and "inference" not in arguments:
        return SOLVERS[name], arguments
    return named_solver(SOLVERS, name, data, arguments)


def solve(name: str, data: SiloData | Remote, **arguments: Any) -> SolverResult:
    solver, arguments = _named(name, data, arguments)
    return solver(data, **arguments)


def solve_many(name: str, data: SiloData, **arguments: Any) -> Results:
    solver, arguments = _named(name, data, arguments)
    return many.solve_many(solver, data, **arguments)


solve.__doc__ = shared_documentation(SOLVERS)
cast(Any, solve).__signature__ = shared_signature()
solve_many.__doc__ = many.solve_many.__doc__
cast(Any, solve_many).__signature__ = many.many_signature()
