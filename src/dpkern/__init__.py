"""Kernels and solvers for differentially private empirical risk minimisation across silos."""

from dpkern import kernels

__version__ = "0.1.0"
__all__ = ["kernels"]
