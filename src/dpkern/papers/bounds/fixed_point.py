"""Cyffers, Bellet, Basu (2023), and Basu's slides on it: bounds and prescriptions."""

import math
from typing import Literal

from dpkern.papers.bounds._arguments import checked


@checked
def bound_fixed_point(
    *,
    iterations: int,
    contraction: float,
    dim: int,
    std: float,
    square_distance: float,
    activation: float = 1.0,
    error: float = 0.0,
) -> float:
    """Return the bound on E |u_(k+1) - u*|^2 of Equation (1) of Basu's slides.

    For a tau-contractive operator, blocks that are active with probability q and inexact values
    with E |e|^2 <= zeta^2 it is (1 - q^2 (1 - tau) / 8)^k D + 8 ((sqrt(p) sigma + zeta) /
    (sqrt(q) (1 - tau)) + (p sigma^2 + zeta^2) / (q^3 (1 - tau)^3)). The term in sigma, of which the
    others are squares, has another unit than they have.

    Parameters
    ----------
    iterations, contraction, dim, std : int, float, int, float
        k, tau, p and sigma.
    square_distance : float
        D = |u_0 - u*|^2.
    activation, error : float
        q and zeta.
    """
    q, rest = activation, 1.0 - contraction
    first = (math.sqrt(dim) * std + error) / (math.sqrt(q) * rest)
    second = (dim * std**2 + error**2) / (q * rest) ** 3
    return (1.0 - q**2 * rest / 8.0) ** iterations * square_distance + 8.0 * (first + second)


@checked
def bound_admm(
    *,
    mode: Literal["central", "federated", "token"],
    dim: int,
    order: float,
    epsilon: float,
    clip: float,
    prox_step: float,
    contraction: float,
    n: int,
    fraction: float = 1.0,
) -> float:
    """Return the utility row of the table of Cyffers, Bellet, Basu (2023), constant 1, as printed.

    With x = p a L^2 gamma^2 / eps it is sqrt(x / (r n)) / (1 - tau) + x / (r^2 n^2 (1 - tau)^3),
    r = 1 in central mode, and for a token sqrt(x / n) / (1 - tau) + x / (n (1 - tau)^3). The second
    terms of the first two modes are the squares of sqrt(x) / (r n), not of what is printed.

    Parameters
    ----------
    mode : {"central", "federated", "token"}
    dim : int
        p.
    order, epsilon : float
        The claim (a, epsilon) in Renyi's sense.
    clip, prox_step, contraction : float
        L, gamma and tau.
    n : int
        Number of users.
    fraction : float
        r = m / n in federated mode.
    """
    x, rest = dim * order * (clip * prox_step) ** 2 / epsilon, 1.0 - contraction
    r = fraction if mode == "federated" else 1.0
    square = n if mode == "token" else (r * n) ** 2
    return math.sqrt(x / (r * n)) / rest + x / (square * rest**3)


@checked
def bound_dp_sgd(*, diameter: float, n: int, clip: float, steps: int) -> float:
    """Return |C| n L log(T) / sqrt(T), the utility of DP-SGD on Basu's slides, constant 1.

    Parameters
    ----------
    diameter, clip : float
        |C| of the feasible set, and L.
    n, steps : int
        Records and steps T.
    """
    return diameter * n * clip * math.log(steps) / math.sqrt(steps)


@checked
def claim_dp_sgd(*, steps: int, n: int, noise_multiplier: float) -> float:
    """Return the rho = T / (2 n^2 sigma^2) that Basu's slides claim for T steps of DP-SGD.

    Every step takes one of n records at random, with noise of std sigma times the sensitivity; the
    claim is (a, a rho)-RDP for every a. The certificate of `minibatch_sgd` with
    sampling="without_replacement" and batch_size=1, which is the same algorithm, states the truth.
    """
    return steps / (2.0 * (n * noise_multiplier) ** 2)
