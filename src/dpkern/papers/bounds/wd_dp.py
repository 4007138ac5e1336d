"""Kang, Liu, Niu, Wang (2021), WD-DP: bounds and prescriptions."""

import math

from dpkern.papers.bounds._arguments import checked


@checked
def bound_wd_dp(
    *, smoothness: float, strength: float, clip: float, dim: int, n: int, epsilon: float,
    delta: float, steps: int, gap: float,
) -> float:  # fmt: skip
    """Return the bound on E L(theta^(c)) - L* of Equation (15) of Kang et al. (2021), with c = 8.

    For steps of 1 / L and a constant mu of Polyak and Lojasiewicz it is (1 - mu / L)^T gap + (p
    sigma^2 / (2 L)) sum_(t < T) (1 - mu / L)^t, with the sigma of (4): one noise for the average of
    all silos, where the algorithm draws one in every silo. The noise on the weights is not in it.

    Parameters
    ----------
    smoothness, strength, clip : float
        L, mu and G.
    dim, n, steps : int
        p, all records and T.
    epsilon, delta : float
        The part (epsilon_1, delta_1) of the claim.
    gap : float
        L(theta^0) - L*.
    """
    variance = 8.0 * clip**2 * steps * math.log(1.0 / delta) / (n * epsilon) ** 2
    shrink = 1.0 - strength / smoothness
    weights = (1.0 - shrink**steps) * smoothness / strength
    return shrink**steps * gap + dim * variance / (2.0 * smoothness) * weights


@checked
def choose_wd_dp(
    *, smoothness: float, clip: float, dim: int, n: int, epsilon: float, delta: float
) -> tuple[int, float]:
    """Return T and eta = 1 / L of Theorem 3 of Kang et al. (2021), constant 1.

    T = log(n^2 epsilon^2 / (p G^2 ln(1/delta))), rounded up and at least 1; parameters as for
    `bound_wd_dp`.
    """
    signal = (n * epsilon / clip) ** 2 / (dim * math.log(1.0 / delta))
    return max(1, math.ceil(math.log(signal))), 1.0 / smoothness


@checked
def claim_of_silo(*, epsilon: float, delta: float, n: int, size: int) -> tuple[float, float]:
    """Return ((n / n_j) epsilon, delta), the claim for a silo of n_j records by Theorem 2 of Kang
    et al. (2021), for its model alone and the part (epsilon_1, delta_1) of the claim.
    """
    return n / size * epsilon, delta


@checked
def bound_risk_wd_dp(*, clip: float, dim: int, n: int, epsilon: float, delta: float) -> float:
    """Return p G^2 log(n) ln(1/delta) / (n epsilon)^2, the excess risk that Kang et al. (2021)
    state for WD-DP in their table, constant 1; parameters as for `bound_wd_dp`.
    """
    return dim * clip**2 * math.log(n) * math.log(1.0 / delta) / (n * epsilon) ** 2


@checked
def bound_risk_federated_gd(
    *, smoothness: float, strength: float, clip: float, dim: int, m: int, size: int,
    epsilon: float, delta: float,
) -> float:  # fmt: skip
    """Return p G^2 L log(m n_1)^2 ln(1/delta) / (m n_1 lam epsilon)^2, constant 1.

    It is the excess risk that Kang et al. (2021) state for the gradient method of Jayaraman et al.
    (2018), for m silos of which the smallest has n_1 records.

    Parameters
    ----------
    smoothness, strength, clip : float
        L, lam and G.
    dim, m, size : int
        p, m and n_1.
    epsilon, delta : float
        Budget.
    """
    noise = dim * clip**2 * math.log(1.0 / delta) / (m * size * strength * epsilon) ** 2
    return smoothness * math.log(m * size) ** 2 * noise
