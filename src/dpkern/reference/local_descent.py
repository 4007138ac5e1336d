"""Local (proximal) gradient runs: every silo on its own, from a common or its own start."""

import numpy as np

from dpkern.reference.glm import glm_gradient
from dpkern.reference.noise import gaussian
from dpkern.reference.prox import PROXES


def pl_coefficient(r):
    """f'(r) / r of f = r^2 + 3 sin^2 r."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(r > 0.0, 2.0 + 3.0 * np.sin(2.0 * r) / r, 8.0)


COEFFICIENTS = {"pl": pl_coefficient}


def _named(pair):
    """(name, parameters, strength) of a pair (name or object, strength)."""
    which, strength = pair
    return (
        (which, {}, strength)
        if isinstance(which, str)
        else (
            which.name,
            which.parameters,
            strength,
        )
    )


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
    regularizer=None,
    prox=None,
    penalize_intercept=True,
    sigma=None,
    grid=None,
    rng=None,
    batches=None,
    silos=None,
    out=None,
    n_threads=None,
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
        if regularizer is not None:
            name, parameters, strength = _named(regularizer)
            r = np.sqrt(np.sum(theta[:, penalized] ** 2, axis=1, keepdims=True))
            coefficient = coefficient + strength * COEFFICIENTS[name](r, **parameters)
        gradient = sums / sizes + coefficient * np.where(penalized, theta, 0.0)
        theta = theta - eta * (gradient + anchor * (theta - start))
        if prox is not None:
            name, parameters, strength = _named(prox)
            theta[:, penalized] = PROXES[name](theta[:, penalized], eta * strength, **parameters)
    out = np.empty((m, d)) if out is None else out
    runs = np.ones(m, dtype=bool) if silos is None else np.isin(np.arange(m), silos)
    out[:] = np.where(runs[:, np.newaxis], theta, start)
    return out
