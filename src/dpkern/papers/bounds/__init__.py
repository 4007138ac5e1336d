"""The utility bounds and the settings that the papers prescribe, as functions of public numbers.

Every function states the figure of its paper, for a comparison with what is measured. None
of them is a guarantee of this package, and no solver reads one. "Constant 1" marks a rate that the
paper states by O or Omega: the function returns the expression with that constant, and without the
factors that a tilde hides, so that only its growth has a meaning.
"""

from dpkern.papers.bounds.fixed_point import (
    bound_admm,
    bound_dp_sgd,
    bound_fixed_point,
    claim_dp_sgd,
)
from dpkern.papers.bounds.huang import bound_federated_gd, bound_federated_step, bound_local_drift
from dpkern.papers.bounds.isrl import (
    bound_gradient_below,
    bound_prox_sgd,
    bound_prox_svrg,
    bound_shuffled_sum,
    bound_spider,
    choose_prox_sgd,
    choose_prox_svrg,
    choose_spider,
    choose_zcdp,
    convert_to_user_level,
    convert_zcdp,
)
from dpkern.papers.bounds.newton import choose_newton_step
from dpkern.papers.bounds.wd_dp import (
    bound_risk_federated_gd,
    bound_risk_wd_dp,
    bound_wd_dp,
    choose_wd_dp,
    claim_of_silo,
)

__all__ = [
    "bound_admm",
    "bound_dp_sgd",
    "bound_federated_gd",
    "bound_federated_step",
    "bound_fixed_point",
    "bound_gradient_below",
    "bound_local_drift",
    "bound_prox_sgd",
    "bound_prox_svrg",
    "bound_risk_federated_gd",
    "bound_risk_wd_dp",
    "bound_shuffled_sum",
    "bound_spider",
    "bound_wd_dp",
    "choose_newton_step",
    "choose_prox_sgd",
    "choose_prox_svrg",
    "choose_spider",
    "choose_wd_dp",
    "choose_zcdp",
    "claim_dp_sgd",
    "claim_of_silo",
    "convert_to_user_level",
    "convert_zcdp",
]
