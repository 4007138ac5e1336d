"""Kernels and solvers for differentially private empirical risk minimisation across silos."""

from dpkern import data, datasets, io, kernels, losses, oracles, privacy, regularizers, solvers
from dpkern.data import SiloData
from dpkern.oracles import MLP, Oracle
from dpkern.privacy import Budget, Certificate, NoiseStream
from dpkern.solvers import SolverResult, load, solve

__version__ = "0.1.0"
__all__ = [
    "MLP",
    "Budget",
    "Certificate",
    "NoiseStream",
    "Oracle",
    "SiloData",
    "SolverResult",
    "data",
    "datasets",
    "io",
    "kernels",
    "load",
    "losses",
    "oracles",
    "privacy",
    "regularizers",
    "solve",
    "solvers",
]
