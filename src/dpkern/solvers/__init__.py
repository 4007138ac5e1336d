"""One solver per file, and the table of their names."""

from collections.abc import Mapping
from typing import Any, cast

from dpkern.data import SiloData
from dpkern.models.losses import Squared
from dpkern.solvers.admm import admm
from dpkern.solvers.base import many
from dpkern.solvers.base.declaration import Solver, shared_documentation, shared_signature
from dpkern.solvers.base.many import Results
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.base.options import did_you_mean
from dpkern.solvers.base.result import SolverResult, load
from dpkern.solvers.double_noise_newton import double_noise_newton
from dpkern.solvers.federated_gd import federated_gd
from dpkern.solvers.fixed_point import fixed_point
from dpkern.solvers.gradient_descent import gradient_descent
from dpkern.solvers.local_newton import local_newton
from dpkern.solvers.local_sgd import local_sgd
from dpkern.solvers.minibatch_sgd import minibatch_sgd
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


def solve(name: str, data: SiloData, **arguments: Any) -> SolverResult:
    return _solver(name, data, arguments)(data, **arguments)


def solve_many(name: str, data: SiloData, **arguments: Any) -> Results:
    return many.solve_many(_solver(name, data, arguments), data, **arguments)


def chosen(trust: object = "central", model: object = None, *, ridge: bool = False) -> str:
    """Return the name of the solver that "auto" is, by public numbers alone.

    The defaults of gradient descent are within half a point of those of the best other solver, but
    for a few small sets and budgets (docs/utility.md). `ridge` says that it is the squared loss of
    targets with a public bound.
    """
    if ridge and model is None and trust in ("central", "silo"):
        return "ridge"
    if trust == "local":
        return "admm"
    return "gradient_descent" if model is None and trust != "shuffle" else "minibatch_sgd"


def _solver(name: str, data: SiloData, arguments: Mapping[str, Any]) -> Solver:
    if name == "auto":
        loss, nonsmooth = arguments.get("loss", "squared"), {"l1", "penalty"} & set(arguments)
        squared = loss == "squared" or isinstance(loss, Squared)
        regression = isinstance(data, SiloData) and data.task == "regression"
        ridge = regression and squared and not nonsmooth and data.target_bound < float("inf")
        name = chosen(arguments.get("trust", "central"), arguments.get("model"), ridge=ridge)
    if name not in SOLVERS:
        names, close = ", ".join(("auto", *SOLVERS)), did_you_mean(name, SOLVERS)
        raise ValueError(f"name must be one of {names}, got {name!r}{close}")
    return SOLVERS[name]


solve.__doc__ = shared_documentation(SOLVERS)
cast(Any, solve).__signature__ = shared_signature()
solve_many.__doc__ = many.solve_many.__doc__
cast(Any, solve_many).__signature__ = many.many_signature()
