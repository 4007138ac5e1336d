"""What every solver rests on; the pages of the algorithms import these names."""

from dpkern.solvers.base.declaration import BOTH, solver
from dpkern.solvers.base.options import Count, Positive, Share, StepSize
from dpkern.solvers.base.result import SolverResult
from dpkern.solvers.base.run import Run

__all__ = ["BOTH", "Count", "Positive", "Run", "Share", "SolverResult", "StepSize", "solver"]
