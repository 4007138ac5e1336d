"""Ridge regression from noisy second moments.

After AdaSSP, Algorithm 2 of Wang, "Revisiting differentially private linear regression: optimal
and adaptive prediction & estimation in unbounded domain", UAI 2018:

    H = (1/n) ( sum_i clip_B(hess phi_i(0)) + U ) + l2 I      X^T X / n + l2 I for the squared loss
    g = (1/n) ( sum_i clip_C(grad phi_i(0)) + Z )             -X^T y / n
    return -( V f(Lambda) V^T ) g,   H = V Lambda V^T

    AdaSSP:  f(Lambda) = 1 / (Lambda + lambda), lambda from a third, noisy release of the least
             eigenvalue of X^T X, and a bound of the norm of U that holds with probability 0.95
    here:    f(Lambda) from H, g and the public stds of U and Z (`posterior_mean`): no third release

With another loss than the squared one this is one regularised step of Newton's method from 0.
"""

import math

import numpy as np

from dpkern._threads import one_blas_thread
from dpkern._typing import FloatArray
from dpkern.privacy import split_budget
from dpkern.solvers.base import AUTO, BOTH, Run, SolverResult, solver
from dpkern.solvers.base.backends import interruptible
from dpkern.solvers.base.settings import moments
from dpkern.solvers.releases.gradient import NoisyMeanGradient
from dpkern.solvers.releases.hessian import NoisyMeanHessian, resolve_hess_clip, sums_of_one_pass

# Shares of mu^2 of H and g, and prior scales of w: fitted on the regression set wisconsin and on
# synthetic sets of stated distribution, and judged on others (examples/papers/ridge.py).
_SHARES = (1.0, 2.0)
_SCALES, _PASSES = np.linspace(1.0 / 64.0, 1.0, 64), 20


@solver(
    trusts=("central", "silo"), neighbours=BOTH, penalties="l2", loss="squared",
    settings=moments, resolve=resolve_hess_clip, error=(0.28, 0.86), seconds=(1.4, 1100.0),
    in_blocks=1, hessians=True, audit={},
)  # fmt: skip
async def ridge(run: Run, *, hess_clip: float | None = AUTO) -> SolverResult:
    """Ridge regression from one release of X^T X and one of X^T y.

    The clip norms "auto" clip no target within `target_bound` of the first model's, and regression
    needs one of the two. Labels are targets -1 and 1, and follow the rules of docs/settings.md.

    Notes
    -----
    Two releases, whatever the records are, at 0 or the released mean m of targets. The sum of the
    records' Hessians, x x^T for the squared loss, positive semi-definite of rank one and of
    Frobenius norm at most B = row_bound^2: sensitivity sqrt(2) B + q d, q the grid of its noise, or
    B + q d with "add_remove". The sum of their gradients (m - y) x, clipped to C: 2 C, or C. The
    shares are public, mu_H^2 = mu^2 / 3 and mu_g^2 = 2 mu^2 / 3. Under central trust whoever sees
    the aggregate sees sum_j om_j S_j + Z of both, om_j = (p_j/n_j) / max_k (p_k/n_k) on the records
    before rounding; under silo trust every silo's S_j + Z_j, and silos compose in parallel.

    Everything else is post-processing of the two and of the public stds of their noise
    (`posterior_mean`), in place of AdaSSP's paid ridge parameter.
    """
    objective, d, budget = run.objective, run.objective.dim, run.plan.budget
    mu_H, mu_g = (None, None) if budget is None else split_budget(budget.mu, _SHARES, (1, 1))
    hessian, gradient = NoisyMeanHessian(run, mu=mu_H), NoisyMeanGradient(run, mu=mu_g)
    weight, w = objective.shares() if run.plan.trust == "silo" else np.ones(1), run.first_model()
    for t in run.numbered_rounds():
        points = np.tile(w, (len(weight), 1))
        sums = await sums_of_one_pass(run, gradient, hessian, points)
        H = np.tensordot(weight, await hessian.means(points, sums[1]), 1)
        g = await gradient(w, sums[0])
        penalty = np.diag(objective.l2 * objective.penalized)
        with run.clock("kernels"), one_blas_thread():
            if budget is None:
                w = interruptible(np.linalg.lstsq, H + penalty, -g)[0].astype(np.float64)
            else:
                s_H = float(np.linalg.norm(weight * hessian.noise_norm)) / math.sqrt(2.0 * d)
                size = run.plan.clip / math.sqrt(run.plan.arguments["hess_clip"])
                how = {"s_H": s_H, "s_g": gradient.noise_std, "size": size, "penalty": penalty}
                w = w + interruptible(posterior_mean, H, -g - penalty @ w, **how)
        run.record(t, w, 1.0, g)
    return run.result(w)


def posterior_mean(
    H: FloatArray, g: FloatArray, *, s_H: float, s_g: float, size: float, penalty: FloatArray
) -> FloatArray:
    """Return a mean of w given the released H and g = H_true w + noise.

    H has GOE noise of std s_H on its diagonal and g noise of std s_g. Given w, which is normal of
    std tau in every direction, noise and error of H w have variance s^2 = s_g^2 + s_H^2 |w|^2 / 2
    in every coordinate. So g has variance tau^2 lambda^2 + s^2 along an eigenvector of eigenvalue
    lambda, and w a mean of tau^2 lambda / (tau^2 lambda^2 + s^2) g. tau is uniform between 0 and
    the value at which the mean square of predictions, tau^2 tr H, is `size`^2; |w| is that of the
    mean itself, found in a fixed number of passes. `penalty` is the Hessian of the penalty, and is
    applied to the quadratic function that the mean minimises.

    An eigenvalue above the noise's spectral norm r = s_H sqrt(2 d) is (x + sqrt(x^2 - r^2)) / 2, x
    the released one (spiked Wigner matrices); one below it is the mean of max(x, 0) and of what
    the others leave of the trace, to equal parts.
    """
    x, V = np.linalg.eigh(H)
    unit = max(np.abs(x).max(), s_H)  # of H, as s_g is that of g: squares do not overflow
    x, s_H, u = x / unit, s_H / unit, V.T @ (g / s_g)
    r = s_H * math.sqrt(2.0 * len(x))
    seen = x > r
    eigenvalue = np.where(seen, 0.5 * (x + np.sqrt(np.maximum(x**2 - r**2, 0.0))), 0.0)
    rest = max(x.sum() - eigenvalue.sum(), 0.0) / max(np.count_nonzero(~seen), 1)
    eigenvalue[~seen] = 0.5 * (rest + np.maximum(x[~seen], 0.0))
    largest = size / s_g * math.sqrt(unit / max(x.sum(), s_H * math.sqrt(len(x))))
    tau2 = (_SCALES * largest)[:, np.newaxis] ** 2
    mean = np.zeros(len(x))
    for _ in range(_PASSES):
        s2 = 1.0 + 0.5 * s_H**2 * mean @ mean
        variance = tau2 * eigenvalue**2 + s2
        likelihood = -0.5 * np.sum(np.log(variance) + u**2 / variance, axis=1)
        weight = np.exp(likelihood - likelihood.max())
        found = (weight / weight.sum()) @ (tau2 * eigenvalue / variance) * u
        mean = 0.5 * (mean + found)  # without the half, |w| could alternate for ever
    smooth = (V * eigenvalue) @ V.T
    return np.linalg.lstsq(smooth + penalty / unit, smooth @ (V @ mean))[0] * (s_g / unit)
