"""One solver per file, and the table of their names."""

from collections.abc import Callable
from typing import Any

from dpkern.data import SiloData
from dpkern.solvers._objective import Objective
from dpkern.solvers._operators import Declared
from dpkern.solvers._result import SolverResult, load
from dpkern.solvers.admm import admm
from dpkern.solvers.double_noise_newton import double_noise_newton
from dpkern.solvers.federated_gd import federated_gd
from dpkern.solvers.fixed_point import fixed_point
from dpkern.solvers.gradient_descent import gradient_descent
from dpkern.solvers.local_newton import local_newton
from dpkern.solvers.local_sgd import local_sgd
from dpkern.solvers.minibatch_sgd import minibatch_sgd
from dpkern.solvers.output_perturbation import output_perturbation
from dpkern.solvers.prox_pl_svrg import prox_pl_svrg
from dpkern.solvers.prox_sgd import prox_sgd
from dpkern.solvers.prox_svrg import prox_svrg
from dpkern.solvers.spider import spider
from dpkern.solvers.wd_dp import wd_dp

__all__ = [
    "SOLVERS",
    "Declared",
    "Objective",
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
    "spider",
    "wd_dp",
]

SOLVERS: dict[str, Callable[..., SolverResult]] = {
    "gradient_descent": gradient_descent,
    "federated_gd": federated_gd,
    "wd_dp": wd_dp,
    "output_perturbation": output_perturbation,
    "local_newton": local_newton,
    "double_noise_newton": double_noise_newton,
    "admm": admm,
    "fixed_point": fixed_point,
    "prox_sgd": prox_sgd,
    "prox_svrg": prox_svrg,
    "prox_pl_svrg": prox_pl_svrg,
    "spider": spider,
    "minibatch_sgd": minibatch_sgd,
    "local_sgd": local_sgd,
}


def solve(name: str, data: SiloData, **parameters: Any) -> SolverResult:
    """Run a solver by name.

    Parameters
    ----------
    name : str
        One of `SOLVERS`.
    data : SiloData
        The records.
    **parameters
        The solver's own; see its documentation.

    Returns
    -------
    result : SolverResult

    Raises
    ------
    ValueError
        When there is no such solver, or an argument or a condition does not hold.
    TypeError
        When a parameter is unknown or of the wrong kind.
    """
    if name not in SOLVERS:
        raise ValueError(f"name is {name!r}; it must be one of {', '.join(SOLVERS)}")
    return SOLVERS[name](data, **parameters)
