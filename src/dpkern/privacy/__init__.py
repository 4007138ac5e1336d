"""Budgets, the ledger of releases, certificates and noise mechanisms."""

from dpkern.privacy._exact import sqrt_down
from dpkern.privacy.accounting import (
    WITHOUT_REPLACEMENT,
    Events,
    Sampled,
    sampled_delta,
    sampled_epsilon,
    sampled_scale,
)
from dpkern.privacy.batches import (
    Cyclic,
    FullBatch,
    OnePass,
    Poisson,
    Rows,
    Sampler,
    WithoutReplacement,
    make_sampler,
)
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
from dpkern.stream import NoiseStream, Purpose

__all__ = [
    "MAX_RECORDS",
    "WITHOUT_REPLACEMENT",
    "BinomialSum",
    "Budget",
    "Certificate",
    "Cyclic",
    "Events",
    "FullBatch",
    "GaussianHessian",
    "GaussianMessages",
    "GaussianSum",
    "LastIterate",
    "Ledger",
    "LocalRuns",
    "NoiseStream",
    "OnePass",
    "Poisson",
    "Purpose",
    "Release",
    "Rows",
    "Sampled",
    "Sampler",
    "Schedule",
    "UncertifiedLaplace",
    "WeightNoise",
    "WithoutReplacement",
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
    "make_sampler",
    "records_of",
    "sample_users",
    "sampled_delta",
    "sampled_epsilon",
    "sampled_scale",
    "shuffle_sensitivity",
    "split_budget",
    "sqrt_down",
    "total_on_grid",
    "walk_graph",
    "zcdp_delta",
    "zcdp_epsilon",
    "zcdp_rho",
]
