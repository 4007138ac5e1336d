"""Margin losses: (y, z, *params) -> value, first and second derivative in z."""

import math

import numpy as np

_erfc = np.vectorize(math.erfc, otypes=[float])


def logistic(y, z):
    t = y * z
    e = np.exp(-np.abs(t))
    value = np.log1p(e) + np.maximum(-t, 0.0)
    return value, -y * np.where(t >= 0.0, e, 1.0) / (1.0 + e), e / (1.0 + e) ** 2


def squared(y, z):
    return 0.5 * (z - y) ** 2, z - y, np.ones_like(z)


def huber(y, z, delta):
    r = z - y
    small = np.abs(r) <= delta
    value = np.where(small, 0.5 * r**2, delta * (np.abs(r) - 0.5 * delta))
    return value, np.clip(r, -delta, delta), np.where(small, 1.0, 0.0)


def smoothed_hinge(y, z, h):
    a = 1.0 - y * z
    inside = np.clip(a, 0.0, h)
    value = np.where(a <= h, 0.5 * inside**2 / h, a - 0.5 * h)
    return value, -y * inside / h, np.where((a > 0.0) & (a < h), 1.0 / h, 0.0)


def squared_hinge(y, z):
    a = np.maximum(1.0 - y * z, 0.0)
    return 0.5 * a**2, -y * a, np.where(a > 0.0, 1.0, 0.0)


def poisson(y, z, low, high, most):
    at, count = np.clip(z, low, high), np.clip(y, 0.0, most)
    mean = np.exp(at)
    value = mean - count * at + (mean - count) * (z - at)
    return value, mean - count, np.where(at == z, mean, 0.0)


def gamma(y, z, low, high, most):
    at = np.clip(z, low, high)
    ratio = np.clip(y, 0.0, most) * np.exp(-at)
    return ratio + at + (1.0 - ratio) * (z - at), 1.0 - ratio, np.where(at == z, ratio, 0.0)


def negative_binomial(y, z, a, most):
    count, log_a = np.clip(y, 0.0, most), np.log(a)
    p = np.exp(-np.logaddexp(0.0, -z - log_a))
    value = (count + 1.0 / a) * np.logaddexp(0.0, z + log_a) - count * z
    second = (count + 1.0 / a) * p * np.exp(-np.logaddexp(0.0, z + log_a))
    first = np.where(
        z > 0.0,
        (1.0 - count * np.exp(-np.abs(z))) / (a + np.exp(-np.abs(z))),
        (np.exp(-np.abs(z)) - count) / (1.0 + a * np.exp(-np.abs(z))),
    )
    return value, first, second


def cloglog(y, z, high):
    negative = y < 0.0
    at = np.clip(z, -500.0, np.where(negative, high, 4.0))
    hazard = np.exp(at)
    odds = 1.0 / np.expm1(hazard)
    g = hazard * odds
    value = np.where(negative, hazard + hazard * (z - at), np.log1p(odds) - np.minimum(z - at, 0.0))
    # Bernoulli's series where h + g - 1 would cancel
    h = hazard
    small = g * h * (0.5 + h / 12 - h**3 / 720 + h**5 / 30240 - h**7 / 1209600)
    second = np.where(negative, hazard, np.where(hazard < 0.125, small, g * (hazard + g - 1.0)))
    return value, np.where(negative, hazard, -g), np.where(at == z, second, 0.0)


def probit(y, z, high):
    t = y * z
    at = np.maximum(t, -high)
    tail = 0.5 * _erfc(np.abs(at) / np.sqrt(2.0))
    phi = np.exp(-0.5 * (at * at)) / np.sqrt(2.0 * np.pi)
    g = phi / np.where(at < 0.0, tail, 1.0 - tail)
    value = -np.where(at < 0.0, np.log(tail), np.log1p(-tail)) - g * np.minimum(t - at, 0.0)
    return value, -y * g, np.where(at == t, np.maximum(g * (g + at), 0.0), 0.0)


def poisson_majorant(y, z, low, high, most):
    return np.full_like(z, np.exp(high))


def gamma_majorant(y, z, low, high, most):
    return np.clip(y, 0.0, most) * np.exp(-low) * np.ones_like(z)


def negative_binomial_majorant(y, z, a, most):
    return 0.25 * (np.clip(y, 0.0, most) + 1.0 / a) * np.ones_like(z)


def cloglog_majorant(y, z, high):
    return np.where(y < 0.0, np.exp(high), 0.4126) * np.ones_like(z)


def probit_majorant(y, z, high):
    return probit(1.0, np.full_like(z, -high), high)[2]


def logistic_majorant(y, z):
    a = np.maximum(np.abs(z), 2.0**-500)
    return np.tanh(0.5 * a) / (2.0 * a)


def squared_majorant(y, z):
    return np.ones_like(z)


def huber_majorant(y, z, delta):
    return delta / np.maximum(np.abs(z - y), delta)


def smoothed_hinge_majorant(y, z, h):
    return 1.0 / np.maximum(2.0 * np.abs(1.0 - y * z - 0.5 * h), h)


def squared_hinge_majorant(y, z):
    return np.ones_like(z)


LOSSES = {
    f.__name__: f
    for f in (
        *(logistic, squared, huber, smoothed_hinge, squared_hinge),
        *(poisson, gamma, negative_binomial, cloglog, probit),
    )
}

MAJORANTS = {
    "logistic": logistic_majorant,
    "squared": squared_majorant,
    "huber": huber_majorant,
    "smoothed_hinge": smoothed_hinge_majorant,
    "squared_hinge": squared_hinge_majorant,
    "poisson": poisson_majorant,
    "gamma": gamma_majorant,
    "negative_binomial": negative_binomial_majorant,
    "cloglog": cloglog_majorant,
    "probit": probit_majorant,
}


def majorant(loss, y, z):
    """Evaluate the curvature of the least majorant of a loss of the table."""
    name, params = (loss, ()) if isinstance(loss, str) else (loss.name, loss.params)
    with np.errstate(all="ignore"):
        return MAJORANTS[name](y, z, *params)


def block(loss, y, z):
    """Evaluate a loss given by name, by an object with `name` and `params`, or by its own formula.

    A formula (y, z) -> (value, first, second) is the reference of a custom loss: derivatives that
    are not finite count as 0.
    """
    if callable(loss):
        with np.errstate(all="ignore"):
            value, *derivatives = loss(y, z)
        return value, *(np.where(np.isfinite(d), d, 0.0) for d in derivatives)
    name, params = (loss, ()) if isinstance(loss, str) else (loss.name, loss.params)
    with np.errstate(all="ignore"):  # overflow and NaN at extreme margins are expected
        return LOSSES[name](y, z, *params)
