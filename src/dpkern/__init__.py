"""Kernels and solvers for differentially private empirical risk minimisation across silos."""

from dpkern import datasets, kernels, losses, privacy, regularizers, solvers
from dpkern.data import SiloData
from dpkern.privacy import Budget, Certificate, NoiseStream
from dpkern.solvers import SolverResult, load, solve

__version__ = "0.1.0"
__all__ = [
    "Budget",
    "Certificate",
    "NoiseStream",
    "SiloData",
    "SolverResult",
    "datasets",
    "kernels",
    "load",
    "losses",
    "privacy",
    "regularizers",
    "solve",
    "solvers",
]
