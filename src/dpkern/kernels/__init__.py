"""Public kernels: validation and documentation of the compiled functions.

Kernels return sums over the records of every silo, without a mean and without penalties. Callers
divide after the release, so that the noise is on an exact grid sum, whose sensitivity is valid for
the doubles that are returned. The docstring of a kernel describes only the parameters and errors
that it does not share:

Parameters
----------
data : SiloData
    N records in m silos, with d coordinates each, the intercept included; `Data` is what kernels
    read of them.
w : array_like, shape (d,) or (m, d)
    One model for all silos, or one model per silo.
loss : str or Loss
    A loss of a linear model, see `dpkern.models.losses`.
clip : float
    Clip norm C > 0 of one record's term in l2 norm. Infinity disables clipping and grid: the sums
    are then plain floating-point sums.
grid : float or array_like, shape (m,), optional
    Power of two q between 2^-400 and 2^400 of which every entry of a sum is a multiple, one for all
    silos or one per silo. None means the finest on which the sum over all silos is exact, too. A
    sum to which noise is added needs the grid of the noise, which the mechanism chooses.
silo_weight : array_like, shape (m,), optional
    Factors in [0, 1] on the terms of a silo's records, applied before they are rounded.
rows : (indices, offsets), optional
    A minibatch: int64 indices of records, sorted by silo, and the (m + 1,) int64 offsets of the
    silos in them. A record that occurs r times counts r times, also in the sensitivity.
rng : None, int >= 0 or NoiseStream
    Source of the noise. None is the operating system's entropy, and an integer is reproducible and
    not private. A call uses one release of a stream.
out : ndarray, optional
    Output array: float64, C-contiguous, aligned and writeable, of the shape of the result, which is
    then `out` itself.
n_threads : int, optional
    Number of threads; None means the cores available to the process. Only floating-point sums
    without a grid depend on it.

Raises
------
TypeError, ValueError
    When an argument is invalid. The message has the form "NAME must be ..., got ..." and contains
    no value of a record.
RuntimeError
    When a stream was wiped or belongs to another process.
"""

from dpkern.kernels import installation  # noqa: F401, chooses the instruction set
from dpkern.kernels._arguments import Data
from dpkern.kernels._sweeps import PreparedSweep, ProxState
from dpkern.kernels.admm import admm_rounds, loss_prox, prox_sweep
from dpkern.kernels.descent import glm_descent
from dpkern.kernels.glm import (
    glm_difference,
    glm_gradient,
    glm_gradients,
    glm_losses,
    glm_margins,
    glm_norms,
    glm_products,
)
from dpkern.kernels.hessian import glm_hessian, glm_hessians
from dpkern.kernels.local_descent import glm_local_descent
from dpkern.kernels.mechanism import clip_and_sum, gaussian, goe
from dpkern.kernels.mlp import mlp_difference, mlp_gradient
from dpkern.kernels.newton import line_search, newton_direction
from dpkern.kernels.ordinal import ordinal_gradient
from dpkern.kernels.prox import prox
from dpkern.kernels.shuffle import shuffle_sum

# fmt: off
__all__ = [
    "Data", "PreparedSweep", "ProxState", "admm_rounds", "clip_and_sum", "gaussian", "glm_descent",
    "glm_difference", "glm_gradient", "glm_gradients", "glm_hessian", "glm_hessians",
    "glm_local_descent", "glm_losses", "glm_margins", "glm_norms", "glm_products", "goe",
    "line_search", "loss_prox", "mlp_difference", "mlp_gradient", "newton_direction",
    "ordinal_gradient", "prox", "prox_sweep", "shuffle_sum",
]
# fmt: on
