"""NumPy reference implementations, against which the compiled kernels are tested."""

from dpkern.reference.admm import admm_rounds, loss_prox, prox_sweep
from dpkern.reference.clip import clip_and_sum
from dpkern.reference.descent import glm_descent
from dpkern.reference.glm import (
    glm_difference,
    glm_gradient,
    glm_gradients,
    glm_losses,
    glm_margins,
    glm_norms,
    glm_products,
)
from dpkern.reference.hessian import glm_hessian, glm_hessians
from dpkern.reference.local_descent import glm_local_descent
from dpkern.reference.mlp import mlp_difference, mlp_gradient, mlp_size
from dpkern.reference.newton import line_search, newton_direction
from dpkern.reference.noise import gaussian, goe
from dpkern.reference.ordinal import ordinal_gradient
from dpkern.reference.persons import glm_person_gradient
from dpkern.reference.prox import prox
from dpkern.reference.shuffle import shuffle_sum

# fmt: off
__all__ = [
    "admm_rounds", "clip_and_sum", "gaussian", "glm_descent", "glm_difference", "glm_gradient",
    "glm_gradients", "glm_hessian", "glm_hessians", "glm_local_descent", "glm_losses",
    "glm_margins", "glm_norms", "glm_person_gradient", "glm_products", "goe", "line_search",
    "loss_prox", "mlp_difference", "mlp_gradient", "mlp_size", "newton_direction",
    "ordinal_gradient", "prox", "prox_sweep", "shuffle_sum",
]
# fmt: on
