"""Sums of clipped gradients in which the records of a person are clipped together, too."""

import itertools

import numpy as np

from dpkern.reference.clip import clip_limit, drop_in, round_to_grid
from dpkern.reference.glm import _silos, weighted


@drop_in
def glm_person_gradient(
    data, w, *, loss="logistic", clip, persons, person_clip, grid, silo_weight=None
):
    sums = np.zeros((data.m, data.d))
    weight = np.ones(data.m) if silo_weight is None else silo_weight
    grids = np.broadcast_to(grid, (data.m,))
    persons = np.asarray(persons)
    few = np.floor(person_clip / clip * (1.0 + 2.0**-52))
    for j, (V, square, ratio, records, z) in enumerate(_silos(data, w)):
        q, begin = grids[j], data.offsets[j]
        lim = clip_limit(square, data.d, clip=clip, grid=q)
        with np.errstate(invalid="ignore"):
            s = ratio * weighted(loss, records, z)[1]
        s = weight[j] * np.where(np.isnan(s), 0.0, np.clip(s, -lim, lim))
        s, V = np.where(lim > 0, s, 0.0), np.where(lim[:, None] > 0, V, 0.0)
        steps = round_to_grid(s[:, None] * V, q) / q
        bounds = persons[(begin <= persons) & (persons <= data.offsets[j + 1])] - begin
        limit = weight[j] * person_clip / q * (1.0 - (data.d + 16) * 2.0**-52)
        for a, b in itertools.pairwise(bounds):
            t = steps[a:b].sum(axis=0)
            norm = np.sqrt(np.sum(t**2))
            if b - a > few and norm > limit:
                t = np.trunc(limit / norm * t)
            sums[j] += t
        sums[j] *= q
    return sums
