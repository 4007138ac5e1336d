"""Proximal operators argmin_x gamma r(x) + |x - v|^2 / 2, row by row."""

import numpy as np

from dpkern.reference.clip import drop_in


def soft_threshold(v, t):
    return np.sign(v) * np.maximum(np.abs(v) - t, 0.0)


def direction(v):
    """Return (scale, v / scale, |v / scale|), scale = max |v|, without over- or underflow."""
    scale = np.max(np.abs(v), axis=-1, keepdims=True, initial=0.0)
    scale = np.where(scale > 0.0, scale, 1.0)
    # Denormals have no reciprocal, and a quotient by 2^-1074 may exceed every double's precision.
    u = v / scale
    return scale, u, np.sqrt(np.sum(u**2, axis=-1, keepdims=True))


def l2_ball(v, gamma, radius=1.0):
    scale, u, norm = direction(v)
    with np.errstate(over="ignore"):
        outside = norm > radius / scale
    return np.where(outside, u * (radius / np.where(outside, norm, 1.0)), v)


def simplex(v, gamma, total=1.0):
    """Duchi et al. 2008, Figure 1, after a shift by the largest entry."""
    with np.errstate(over="ignore"):
        v = v - np.max(v, axis=-1, keepdims=True)
    u = -np.sort(-np.maximum(v, -2.0 * total), axis=-1)  # what lies below is not positive
    count = np.arange(1, v.shape[-1] + 1)
    bars = (np.cumsum(u, axis=-1) - total) / count
    last = np.sum(u > bars, axis=-1, keepdims=True) - 1
    return np.maximum(v - np.take_along_axis(bars, last, axis=-1), 0.0)


def group_lasso(v, gamma, groups, weights=None):
    weights = np.ones(len(groups)) if weights is None else weights
    out, start = np.empty_like(v), 0
    for size, weight in zip(groups, weights, strict=True):
        part = v[..., start : start + size]
        scale, _, norm = direction(part)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            threshold = gamma * weight / scale
            factor = np.where(norm > threshold, (norm - threshold) / norm, 0.0)
        out[..., start : start + size] = factor * part
        start += size
    return out


def pl(v, gamma):
    """s v / |v| at the root s of s + gamma (2 s + 3 sin 2s) = |v|, by bisection."""
    scale, _, norm = direction(v)
    with np.errstate(over="ignore", under="ignore"):
        r = scale * norm
    # sin(s) equals s for small s, and is negligible for large s.
    factor = np.where(r < 1e-100, 1.0 / (1.0 + 8.0 * gamma), 1.0 / (1.0 + 2.0 * gamma))
    usual = (r >= 1e-100) & (r <= 1e100)
    r = np.where(usual, r, 1.0)
    low, high = r / (1.0 + 8.0 * gamma), r
    for _ in range(60):
        s = 0.5 * (low + high)
        above = s + gamma * (2.0 * s + 3.0 * np.sin(2.0 * s)) > r
        low, high = np.where(above, low, s), np.where(above, s, high)
    return np.where(usual, 0.5 * (low + high) / r, factor) * v


PROXES = {
    "l1": soft_threshold,
    "l2_squared": lambda v, gamma: v / (1.0 + gamma),
    "elastic_net": lambda v, gamma, l1_ratio=0.5: (
        soft_threshold(v, gamma * l1_ratio) / (1.0 + gamma * (1.0 - l1_ratio))
    ),
    "l2_ball": l2_ball,
    "box": lambda v, gamma, lower=0.0, upper=1.0: np.clip(v, lower, upper),
    "non_negative": lambda v, gamma: np.maximum(v, 0.0),
    "simplex": simplex,
    "group_lasso": group_lasso,
    "pl": pl,
}


@drop_in
def prox(name, v, gamma, **parameters):
    if not isinstance(name, str):
        name, gamma, parameters = name.name, gamma * name.strength, name.parameters
    return PROXES[name](np.asarray(v, dtype=np.float64), gamma, **parameters)
