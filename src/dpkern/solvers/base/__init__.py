"""What every solver rests on; the pages of the algorithms import these names."""

from dpkern.solvers.base.declaration import BOTH, solver
from dpkern.solvers.base.options import (
    AUTO,
    Count,
    Momentum,
    NotNegative,
    Positive,
    Returns,
    Share,
    StepSize,
)
from dpkern.solvers.base.result import SolverResult
from dpkern.solvers.base.run import Run

__all__ = [
    "AUTO",
    "BOTH",
    "Count",
    "Momentum",
    "NotNegative",
    "Positive",
    "Returns",
    "Run",
    "Share",
    "SolverResult",
    "StepSize",
    "solver",
]
