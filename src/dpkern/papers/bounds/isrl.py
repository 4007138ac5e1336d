"""Lowy, Ghafelebashi, Razaviyayn (2023): bounds and prescriptions."""

import math
from typing import Literal

from dpkern.papers.bounds._arguments import checked

Trust = Literal["silo", "shuffle"]


@checked
def convert_zcdp(*, rho: float, delta: float) -> float:
    """Return the epsilon rho + 2 sqrt(rho ln(1/delta)) of rho-zCDP, Proposition D.1 of Lowy,
    Ghafelebashi, Razaviyayn (2023); `Certificate.epsilon` is exact for Gaussian noise, and smaller.
    """
    return rho + 2.0 * math.sqrt(rho * math.log(1.0 / delta))


@checked
def choose_zcdp(*, epsilon: float, delta: float) -> float:
    """Return the rho epsilon^2 / (8 ln(1/delta)) that suffices for (epsilon, delta), Proposition
    D.2 of the same paper, for epsilon <= 2 ln(1/delta); beyond it raises ValueError.
    """
    log = math.log(1.0 / delta)
    if epsilon > 2.0 * log:
        raise ValueError(f"epsilon must be at most 2 ln(1/delta) = {2 * log:.4g}, got {epsilon!r}")
    return epsilon**2 / (8.0 * log)


@checked
def convert_to_user_level(*, epsilon: float, delta: float, n: int) -> tuple[float, float]:
    """Return (n epsilon, n exp((n - 1) epsilon) delta), which Appendix B of the same paper states
    for the n records of a silo together; `Certificate.user_level` is exact, and smaller.
    """
    exponent = (n - 1) * epsilon
    return n * epsilon, n * math.exp(exponent) * delta if exponent < 700.0 else math.inf


@checked
def bound_prox_sgd(
    *, trust: Trust, clip: float, smoothness: float, strength: float, dim: int, m: int, n: int,
    participation: int, epsilon: float, delta: float,
) -> float:  # fmt: skip
    """Return the excess risk of proximal SGD, Theorem 2.1 of the same paper, constant 1.

    (L^2 / mu) (kappa^2 noise + kappa / (M n)), where the noise is d ln(1/delta) / (epsilon^2 n^2 M)
    under silo trust, (4), and d ln^2(d/delta) / (epsilon^2 n^2 N^2) under shuffle trust, (5).

    Parameters
    ----------
    trust : {"silo", "shuffle"}
    clip, smoothness, strength : float
        L, beta and the constant mu of the proximal PL inequality; kappa = beta / mu.
    dim : int
        d.
    m, n, participation : int
        N silos of n records each, M of them in a round.
    epsilon, delta : float
        Budget.
    """
    kappa = smoothness / strength
    if trust == "silo":
        noise = dim * math.log(1.0 / delta) / ((epsilon * n) ** 2 * participation)
    else:
        noise = dim * math.log(dim / delta) ** 2 / (epsilon * n * m) ** 2
    return clip**2 / strength * (kappa**2 * noise + kappa / (participation * n))


@checked
def choose_prox_sgd(
    *, clip: float, smoothness: float, strength: float, dim: int, n: int, participation: int,
    epsilon: float, delta: float, gap: float,
) -> tuple[int, int]:  # fmt: skip
    """Return rounds R and batch size K of Theorem 2.1 of the same paper, under silo trust.

    R = 2 kappa ln((mu Delta / L^2) min(M n, epsilon^2 n^2 M / (d ln(1/delta)))), rounded up and at
    least 1, Delta the `gap` at the start, and K = floor(n / R), which is 0 where n records do not
    suffice; the others as for `bound_prox_sgd`.
    """
    most = min(1.0, epsilon**2 * n / (dim * math.log(1.0 / delta))) * participation * n
    inside = strength * gap / clip**2 * most
    growth = math.log(inside) if inside > 1.0 else 0.0
    R = max(1, math.ceil(2.0 * smoothness / strength * growth))
    return R, n // R


@checked
def bound_prox_svrg(
    *, clip: float, smoothness: float, strength: float, dim: int, m: int, n: int,
    participation: int, epsilon: float, delta: float, heterogeneity: float = 0.0,
) -> float:  # fmt: skip
    """Return the empirical excess risk of proximal SVRG, Theorem 2.2 (E.2) of the same paper,
    constant 1.

    kappa L^2 d ln(1/delta) / (mu epsilon^2 n^2 M) + (N - M) v^2 / (M (N - 1)), where
    `heterogeneity` is v^2 as `Objective.heterogeneity` measures it; the others as for
    `bound_prox_sgd`.
    """
    noise = dim * math.log(1.0 / delta) / ((epsilon * n) ** 2 * participation)
    absent = (m - participation) / (participation * (m - 1)) if m > 1 else 0.0
    return smoothness * (clip / strength) ** 2 * noise + absent * heterogeneity


@checked
def choose_prox_svrg(
    *, clip: float, smoothness: float, strength: float, dim: int, n: int, participation: int,
    epsilon: float, delta: float, gap: float,
) -> tuple[int, int, int, float]:  # fmt: skip
    """Return R = E Q, K, S and eta of Theorem 2.2 (E.2) of the same paper.

    R = 12 kappa updates in a run, S = log2(Delta mu M epsilon^2 n^2 / (kappa d L^2)) runs, both
    rounded up and at least 1, batches of K = max((n^2 / M)^(1/3), epsilon n / (4 sqrt(2 S R
    ln(2/delta)))), rounded up and at most n, and steps (1 / (8 beta)) min(1, K^(3/2) sqrt(M) / n);
    parameters as for `choose_prox_sgd`.
    """
    kappa, M = smoothness / strength, participation
    inside = gap * strength * M * (epsilon * n / clip) ** 2 / (kappa * dim)
    S = max(1, math.ceil(math.log2(inside))) if inside > 0.0 else 1
    R = math.ceil(12.0 * kappa)
    secret = epsilon * n / (4.0 * math.sqrt(2.0 * S * R * math.log(2.0 / delta)))
    K = min(n, math.ceil(max((n**2 / M) ** (1 / 3), secret)))
    return R, K, S, min(1.0, K**1.5 * math.sqrt(M) / n) / (8.0 * smoothness)


@checked
def bound_spider(
    *, clip: float, smoothness: float, dim: int, n: int, m: int, epsilon: float, delta: float,
    gap: float,
) -> float:  # fmt: skip
    """Return the squared norm of the prox-gradient mapping that SPIDER reaches, Theorem 3.1 (F.1)
    of the same paper, with all silos in every round, constant 1.

    (sqrt(L beta Delta) x)^(4/3) + L^2 x^2 with x = sqrt(d ln(1/delta)) / (epsilon n sqrt(N));
    `diagnostics.measure_prox_gradient` has the norm. Parameters as for `choose_prox_sgd`.
    """
    x = math.sqrt(dim * math.log(1.0 / delta) / m) / (epsilon * n)
    return (math.sqrt(clip * smoothness * gap) * x) ** (4 / 3) + (clip * x) ** 2


@checked
def choose_spider(
    *, clip: float, smoothness: float, dim: int, n: int, m: int, epsilon: float, delta: float,
    gap: float, participation: int | None = None,
) -> tuple[int, int, float]:  # fmt: skip
    """Return q, R and eta = 1 / (2 beta) of Theorem 3.1 (F.1) of the same paper.

    q = (1 / y)^(2/3), at most n M where M < N silos take part in a round, and R = sqrt(q) Delta
    beta / (L^2 y), both rounded down, for y = sqrt(Delta beta d ln(1/delta)) / (epsilon n L
    sqrt(M)). q = 0 says that the start is returned as it is. The parameters are those of
    `bound_spider`; `participation` is M, all silos by default.
    """
    M = m if participation is None else participation
    y = math.sqrt(gap * smoothness * dim * math.log(1.0 / delta) / M) / (epsilon * n * clip)
    if y == 0.0:
        raise ValueError("gap must be positive, got 0.0: no step is needed")
    q = math.floor(min(y ** (-2 / 3), n * M if m > M else math.inf))
    return q, math.floor(math.sqrt(q) * gap * smoothness / (clip**2 * y)), 0.5 / smoothness


@checked
def bound_shuffled_sum(*, clip: float, dim: int, epsilon: float, delta: float) -> float:
    """Return the mean squared error d L^2 ln(d/delta)^2 / epsilon^2 of one shuffled sum of vectors,
    Theorem D.2 of the same paper, constant 1, for epsilon <= 15 and delta < 1/2.

    The noise of `trust="shuffle"` is sized by a proof of its own; its certificate has the std.
    """
    if epsilon > 15.0:
        raise ValueError(f"epsilon must be at most 15, got {epsilon!r}")
    if delta >= 0.5:
        raise ValueError(f"delta must be below 1/2, got {delta!r}")
    return dim * (clip * math.log(dim / delta) / epsilon) ** 2


@checked
def bound_gradient_below(
    *, trust: Trust, clip: float, dim: int, m: int, n: int, epsilon: float
) -> float:
    """Return the lower bound on E |grad F(w)|^2 for smooth convex losses, Theorem 3.3 of the same
    paper, constant 1 and without its logarithms.

    L^2 min(1, d / (epsilon^2 n^2 N)) under silo trust, with N^2 for N under shuffle trust: its
    growth alone, restated. Parameters as for `bound_prox_sgd`.
    """
    records = n * math.sqrt(m) if trust == "silo" else float(n * m)
    return clip**2 * min(1.0, dim / (epsilon * records) ** 2)
