"""Rounds of noisy proximal gradient descent on the sum over all silos."""

import numpy as np

from dpkern.reference.clip import drop_in
from dpkern.reference.glm import glm_gradient
from dpkern.reference.noise import GAUSSIAN, draws, release_key
from dpkern.reference.prox import prox as apply_prox


@drop_in
def glm_descent(
    data,
    w,
    *,
    loss="logistic",
    clip,
    step_size,
    scale,
    momentum=0.0,
    before=None,
    l2=0.0,
    prox=None,
    prox_step=None,
    penalize_intercept=True,
    sigma=None,
    grid=None,
    silo_weight=None,
    saturate=False,
    rng=None,
):
    if np.ndim(w) == 2:
        own = {"clip": clip, "l2": l2, "sigma": sigma, "grid": grid, "rng": rng}
        own |= {"momentum": momentum, "before": before}
        models = []
        for i, start in enumerate(w):
            more = {k: v if v is None or np.ndim(v) == 0 else v[i] for k, v in own.items()}
            more["step_size"] = np.broadcast_to(step_size, (len(w), np.shape(step_size)[-1]))[i]
            if prox_step is not None:
                more["prox_step"] = np.broadcast_to(prox_step, (len(w), np.shape(prox_step)[-1]))[i]
            models.append(
                glm_descent(
                    data, start, loss=loss, scale=scale, prox=prox, silo_weight=silo_weight,
                    penalize_intercept=penalize_intercept, saturate=saturate, **more,
                )
            )  # fmt: skip
        return np.array(models)
    penalized = np.ones(data.d, dtype=bool)
    penalized[-1] = penalize_intercept or not data.intercept
    models = []
    before = w if before is None else before
    for t, eta in enumerate(step_size):
        v = w + momentum * (w - before)
        sums = glm_gradient(
            data, v, loss=loss, clip=clip, grid=grid, silo_weight=silo_weight, saturate=saturate
        )
        V = np.sum(sums, axis=0)
        if saturate:
            V = np.clip(V, -(2.0**52) * grid, 2.0**52 * grid)
        if sigma is not None:
            V = V + draws(release_key(rng, t), GAUSSIAN, [0], data.d, [sigma], [grid])[0]
        before, w = w, v - eta * (scale * V + l2 * np.where(penalized, v, 0.0))
        if prox is not None:
            gamma = eta if prox_step is None else prox_step[t]
            w[penalized] = apply_prox(prox, w[penalized], gamma)
        models.append(w)
    return np.array(models)
