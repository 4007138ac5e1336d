"""Noisy proximal SVRG with restarts, for objectives that satisfy a proximal PL inequality.

Algorithms 2 and 9 of Lowy, Ghafelebashi, Razaviyayn, "Private non-convex federated learning without
a trusted server", AISTATS 2023:

    for s = 1..S:  w_s = prox_svrg( w_{s-1} )
    return w_S

Every run of Algorithm 1 returns one of its iterates; in the theorem, a random one.
"""

from dpkern.solvers.base.declaration import renamed
from dpkern.solvers.prox_svrg import prox_svrg

prox_pl_svrg = renamed(
    prox_svrg,
    "prox_pl_svrg",
    "Noisy proximal SVRG with restarts.",
    "`prox_svrg` with restarts: the R gradients and differences of all runs together share\n"
    "mu^2. Every run returns the iterate that `returns` names.",
    defaults={"rounds": 60, "restarts": 3},
    error=(0.27, 0.78),
    seconds=(1.3, 77.0),
    audit={"rounds": 4, "restarts": 1, "step_size": 1e-5},
)
