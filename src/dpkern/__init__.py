"""Kernels and solvers for differentially private empirical risk minimisation across silos."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

# isort: off
from dpkern import _openmp  # must precede any import of the extension module

# isort: on
from dpkern import data, datasets, io, kernels, models, privacy, solvers
from dpkern.data import Schema, SiloData
from dpkern.models import losses, penalties
from dpkern.models.networks import MLP
from dpkern.models.oracles import Oracle
from dpkern.models.penalties import (
    L1,
    L2,
    PL,
    Box,
    ElasticNet,
    GroupLasso,
    L2Ball,
    NonNegative,
    Simplex,
)
from dpkern.planning import Plan, plan
from dpkern.privacy import Budget, Certificate, NoiseStream
from dpkern.privacy.accountant.accountant import Accountant, BudgetSpentError
from dpkern.ranges import PrivateRange, private_range
from dpkern.selection import SelectionError, SelectionResult, select
from dpkern.solvers import SolverResult, load, solve, solve_many
from dpkern.verification import verify

if TYPE_CHECKING:
    from dpkern import auditing
    from dpkern.auditing import AuditResult, OneRunAudit, audit, audit_one_run, audit_scores
    from dpkern.data.encoder import PublicEncoder
    from dpkern.federated.federation import Federation

__version__ = version("dpkern")  # of meson.build
del _openmp, version
__all__ = [
    "L1",
    "L2",
    "MLP",
    "PL",
    "Accountant",
    "AuditResult",
    "Box",
    "Budget",
    "BudgetSpentError",
    "Certificate",
    "ElasticNet",
    "Federation",
    "GroupLasso",
    "L2Ball",
    "NoiseStream",
    "NonNegative",
    "OneRunAudit",
    "Oracle",
    "Plan",
    "PrivateRange",
    "PublicEncoder",
    "Schema",
    "SelectionError",
    "SelectionResult",
    "SiloData",
    "Simplex",
    "SolverResult",
    "audit",
    "audit_one_run",
    "audit_scores",
    "auditing",
    "data",
    "datasets",
    "io",
    "kernels",
    "load",
    "losses",
    "models",
    "penalties",
    "plan",
    "privacy",
    "private_range",
    "select",
    "solve",
    "solve_many",
    "solvers",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import what needs other packages when it is first used, which keeps the import cheap."""
    if name == "PublicEncoder":
        from dpkern.data.encoder import PublicEncoder

        return PublicEncoder
    if name == "Federation":
        from dpkern.federated.federation import Federation

        return Federation
    if name in ("auditing", "AuditResult", "OneRunAudit", "audit", "audit_one_run", "audit_scores"):
        auditing = import_module("dpkern.auditing")
        return auditing if name == "auditing" else getattr(auditing, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
