"""Budgets, the ledger of releases, certificates and noise mechanisms."""

from dpkern.privacy.binomial import binomial_rho, cpsgd_epsilon, shuffle_sensitivity
from dpkern.privacy.budget import (
    Budget,
    gdp_delta,
    gdp_epsilon,
    gdp_log_delta,
    gdp_mu,
    split_budget,
)
from dpkern.privacy.hessian import GaussianHessian, choose_hessian_grid, records_of
from dpkern.privacy.ledger import (
    Certificate,
    Ledger,
    Release,
    compose_parallel,
    compose_sequential,
)
from dpkern.privacy.local_runs import LocalRuns
from dpkern.privacy.mechanisms import MAX_RECORDS, GaussianSum, choose_grid, total_on_grid
from dpkern.privacy.messages import (
    GaussianMessages,
    LastIterate,
    UncertifiedLaplace,
    WeightNoise,
)
from dpkern.privacy.sampling import Schedule, activate_blocks, sample_users, walk_graph
from dpkern.privacy.shuffle import BinomialSum
from dpkern.privacy.zcdp import zcdp_delta, zcdp_epsilon, zcdp_rho
from dpkern.stream import NoiseStream

__all__ = [
    "MAX_RECORDS",
    "BinomialSum",
    "Budget",
    "Certificate",
    "GaussianHessian",
    "GaussianMessages",
    "GaussianSum",
    "LastIterate",
    "Ledger",
    "LocalRuns",
    "NoiseStream",
    "Release",
    "Schedule",
    "UncertifiedLaplace",
    "WeightNoise",
    "activate_blocks",
    "binomial_rho",
    "choose_grid",
    "choose_hessian_grid",
    "compose_parallel",
    "compose_sequential",
    "cpsgd_epsilon",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_log_delta",
    "gdp_mu",
    "records_of",
    "sample_users",
    "shuffle_sensitivity",
    "split_budget",
    "total_on_grid",
    "walk_graph",
    "zcdp_delta",
    "zcdp_epsilon",
    "zcdp_rho",
]
