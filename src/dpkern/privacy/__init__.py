"""Budgets, certificates and conversions of privacy guarantees."""

from dpkern.privacy.certificate.certificate import Certificate
from dpkern.privacy.certificate.composition import compose_parallel, compose_sequential
from dpkern.privacy.certificate.ledger import Release
from dpkern.privacy.guarantees.gdp import (
    Budget,
    BudgetWarning,
    gdp_delta,
    gdp_epsilon,
    gdp_log_delta,
    gdp_mu,
    split_budget,
)
from dpkern.privacy.guarantees.zcdp import zcdp_delta, zcdp_epsilon, zcdp_rho
from dpkern.stream import NoiseStream

# fmt: off
__all__ = [
    "Budget", "BudgetWarning", "Certificate", "NoiseStream", "Release", "compose_parallel",
    "compose_sequential", "gdp_delta", "gdp_epsilon", "gdp_log_delta", "gdp_mu", "split_budget",
    "zcdp_delta", "zcdp_epsilon", "zcdp_rho",
]
# fmt: on
