"""One solver per file, and the table of their names."""

from typing import Any, cast

from dpkern._numbers import did_you_mean
from dpkern.data import SiloData
from dpkern.models.losses import LOSS_OF_TASK
from dpkern.models.networks import MLP
from dpkern.party import Remote
from dpkern.solvers.admm import admm
from dpkern.solvers.base import many
from dpkern.solvers.base.automatic import chosen, has_exact_moments
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
    )
}


def solve(name: str, data: SiloData | Remote, **arguments: Any) -> SolverResult:
    solver, arguments = _named(name, data, arguments)
    return solver(data, **arguments)


def solve_many(name: str, data: SiloData, **arguments: Any) -> Results:
    solver, arguments = _named(name, data, arguments)
    return many.solve_many(solver, data, **arguments)


def _named(name: str, data: object, arguments: dict[str, Any]) -> tuple[Solver, dict[str, Any]]:
    """Return the solver of a name; "auto" also takes the model that suits the data's task."""
    if name == "auto":
        task = data.task if isinstance(data, SiloData | Remote) else None
        suits: dict[str, dict[str, Any]] = {
            "regression": {"loss": LOSS_OF_TASK["regression"]},
            "multiclass": {"model": MLP(hidden=())},
        }
        if arguments.get("model") is None and "loss" not in arguments:
            arguments = {**arguments, **suits.get(str(task), {})}
        name = chosen(
            arguments.get("trust", "central"),
            arguments.get("model"),
            moments=has_exact_moments(ridge, data, arguments),
        )
    if name not in tuple(SOLVERS):  # of any type
        names, close = ", ".join(("auto", *SOLVERS)), did_you_mean(str(name), SOLVERS)
        raise ValueError(f"name must be one of {names}, got {name!r}{close}")
    return SOLVERS[name], arguments


solve.__doc__ = shared_documentation(SOLVERS)
cast(Any, solve).__signature__ = shared_signature()
solve_many.__doc__ = many.solve_many.__doc__
cast(Any, solve_many).__signature__ = many.many_signature()
