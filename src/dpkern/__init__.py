"""Kernels and solvers for differentially private empirical risk minimisation across silos."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

# isort: off
from dpkern import _openmp  # must precede any import of the extension module

# isort: on
from dpkern import datasets, kernels, privacy, solvers
from dpkern.data import Schema, SiloData
from dpkern.evaluation import describe, evaluate, survival_curve
from dpkern.io import read_parquet
from dpkern.models import losses, penalties
from dpkern.models.networks import MLP
from dpkern.models.oracles import Oracle
from dpkern.models.ordinal import AllThreshold
from dpkern.planning import plan
from dpkern.pooling import meta_analysis
from dpkern.privacy import Budget, Certificate, NoiseStream
from dpkern.privacy.accountant.accountant import Accountant, BudgetSpentError
from dpkern.ranges import private_range
from dpkern.selection import select
from dpkern.solvers import SolverResult, load, solve, solve_many
from dpkern.verification import verify

if TYPE_CHECKING:
    from dpkern.auditing import audit, audit_one_run, audit_scores
    from dpkern.cluster import Cluster
    from dpkern.data.encoder import PublicEncoder
    from dpkern.federated.federation import Federation

__version__ = version("dpkern")  # of meson.build
del _openmp, version
# fmt: off
__all__ = [
    "MLP", "Accountant", "AllThreshold", "Budget", "BudgetSpentError", "Certificate", "Cluster",
    "Federation", "NoiseStream", "Oracle", "PublicEncoder", "Schema", "SiloData", "SolverResult",
    "audit", "audit_one_run", "audit_scores", "datasets", "describe", "evaluate", "kernels",
    "load", "losses", "meta_analysis", "penalties", "plan", "privacy", "private_range",
    "read_parquet", "select", "solve", "solve_many", "solvers", "survival_curve", "verify",
]
# fmt: on

# What needs other packages, and is imported when it is first used.
_MODULES = {
    **dict.fromkeys(("audit", "audit_one_run", "audit_scores"), "dpkern.auditing"),
    "Cluster": "dpkern.cluster",
    "PublicEncoder": "dpkern.data.encoder",
    "Federation": "dpkern.federated.federation",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
