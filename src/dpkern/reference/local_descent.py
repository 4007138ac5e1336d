"""Local (proximal) gradient runs: every silo on its own, from a common or its own start."""

import numpy as np

from dpkern.reference.clip import drop_in
from dpkern.reference.glm import glm_gradient
from dpkern.reference.noise import gaussian
from dpkern.reference.prox import prox as apply_prox


def pl_coefficient(r):
    """f'(r) / r of f = r^2 + 3 sin^2 r."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(r > 0.0, 2.0 + 3.0 * np.sin(2.0 * r) / r, 8.0)


COEFFICIENTS = {"pl": pl_coefficient}


@drop_in
def glm_local_descent(
    data,
    w,
    *,
    loss,
    clip,
    steps,
    step_size,
    l2=0.0,
    anchor=0.0,
    smooth=None,
    prox=None,
    penalize_intercept=True,
    sigma=None,
    grid=None,
    rng=None,
    batches=None,
    silos=None,
):
    m, d = data.m, data.d
    start = np.array(np.broadcast_to(w, (m, d)), dtype=np.float64)
    theta = start
    noise = np.zeros((m, steps, d))
    if sigma is not None:
        noise += gaussian((m, steps * d), sigma, grid=grid, rng=rng).reshape(m, steps, d)
    penalized = np.ones(d, dtype=bool)
    penalized[-1] = penalize_intercept or not data.intercept
    offsets = data.offsets if batches is None else batches.shape[2] * np.arange(m + 1)
    sizes = np.diff(offsets)[:, np.newaxis]
    for t, eta in enumerate(np.broadcast_to(step_size, (steps,))):
        rows = None if batches is None else (batches[:, t].ravel(), offsets)
        sums = glm_gradient(data, theta, loss=loss, clip=clip, grid=grid, rows=rows) + noise[:, t]
        coefficient = np.full((m, 1), l2)
        if smooth is not None:
            r = np.sqrt(np.sum(theta[:, penalized] ** 2, axis=1, keepdims=True))
            coefficient = coefficient + smooth.strength * COEFFICIENTS[smooth.name](r)
        gradient = sums / sizes + coefficient * np.where(penalized, theta, 0.0)
        theta = theta - eta * (gradient + anchor * (theta - start))
        if prox is not None:
            theta[:, penalized] = apply_prox(prox, theta[:, penalized], eta)
    runs = np.ones(m, dtype=bool) if silos is None else np.isin(np.arange(m), silos)
    return np.where(runs[:, np.newaxis], theta, start)
