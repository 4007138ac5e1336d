"""Proximal operators argmin_x gamma r(x) + |x - v|^2 / 2."""

import numpy as np


def soft_threshold(v, t):
    return np.sign(v) * np.maximum(np.abs(v) - t, 0.0)


PROXES = {
    "l1": soft_threshold,
    "l2_squared": lambda v, gamma: v / (1.0 + gamma),
    "elastic_net": lambda v, gamma, l1_ratio: (
        soft_threshold(v, gamma * l1_ratio) / (1.0 + gamma * (1.0 - l1_ratio))
    ),
}


def prox(name, v, gamma, **parameters):
    return PROXES[name](np.asarray(v, dtype=np.float64), gamma, **parameters)
