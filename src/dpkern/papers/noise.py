"""The noise that the papers print, as functions of public numbers.

Every function returns the noise std, or an equivalent, for the claim (epsilon, delta) of a paper.
Solvers draw it with calibration="paper", and certificates state its true guarantee.
"""

import math

import numpy as np
from numpy.typing import NDArray

from dpkern._typing import FloatArray

Claim = dict[str, float]

# Kang et al. do not specify their constant; the works that they compare with have 8.
_WD_DP_CONSTANT = 8.0


def gradient_descent(claim: Claim, *, clip: float, n: int, rounds: int) -> float:
    """Noise on the mean gradient, sqrt(8 T ln(1/delta)) C / (N epsilon) (Wang, Ye, Xu 2017)."""
    return math.sqrt(8.0 * rounds * math.log(1.0 / claim["delta"])) * clip / (n * claim["epsilon"])


def federated_gd(claim: Claim, *, clip: float, smallest: int, m: int, steps: int) -> float:
    """Noise on a silo's mean gradient, sqrt(8 T ln(1/delta)) C / (m n_min epsilon) (Huang)."""
    root = math.sqrt(8.0 * steps * math.log(1.0 / claim["delta"]))
    return root * clip / (m * smallest * claim["epsilon"])


def wd_dp(claim: Claim, *, clip: float, n: int, steps: int) -> tuple[float, float]:
    """Noise on a silo's mean gradient at every step and on the weights (Kang et al. 2021).

    Each has half of epsilon and of delta: sqrt(8 T ln(2/delta)) 2 C / (N epsilon), and the same
    without C and T.
    """
    log_term = math.log(2.0 / claim["delta"])
    unit = math.sqrt(_WD_DP_CONSTANT * log_term) / (n * (claim["epsilon"] / 2))
    return clip * math.sqrt(steps) * unit, unit


def output_perturbation(*, clip: float, smallest: int, m: int, l2: float) -> float:
    """The sensitivity 2 C / (m n_min l2) that is divided by epsilon (Jayaraman et al. 2018)."""
    if l2 == 0.0:
        raise ValueError("l2 must be positive for calibration='paper', which divides by it, got 0")
    return 2.0 * clip / (m * smallest * l2)


def newton(mu: float, *, clip: float, hess_clip: float, releases: int) -> tuple[float, float]:
    """Noise on sums of gradients and of Hessians, 2 C sqrt(2 T) / mu and 2 B sqrt(2 T) / mu for 2 T
    releases (Cao, Guo, Zhang 2023).
    """
    root = math.sqrt(releases) / mu
    return 2.0 * clip * root, 2.0 * hess_clip * root


def minibatch_sgd(claim: Claim, *, clip: float, sizes: FloatArray, releases: int) -> FloatArray:
    """Noise on the silos' means, sqrt(8 R ln(1/delta)) C / (n_j epsilon), with 1 for R in one pass
    and K R for R with local steps (Lowy, Ghafelebashi, Razaviyayn 2023).
    """
    root = math.sqrt(8.0 * releases * math.log(1.0 / claim["delta"]))
    return root * clip / (claim["epsilon"] * sizes)


def prox_svrg(
    claim: Claim,
    clip: float,
    sizes: NDArray[np.integer],
    *,
    rounds: int,
    epochs: int,
    restarts: int,
) -> tuple[FloatArray, FloatArray]:
    """Noise on the silos' means of gradients and of differences (Theorem E.2 of the same paper)."""
    delta, E, R = claim["delta"], epochs / restarts, -(-rounds // restarts)
    unit = clip / (claim["epsilon"] * sizes.astype(np.float64))
    log_term = restarts * math.log(2.0 / delta)
    return (
        math.sqrt(256.0 * E * log_term * math.log(5.0 * E / delta)) * unit,
        math.sqrt(1024.0 * R * log_term * math.log(2.5 * R / delta)) * unit,
    )


class Spider:
    """Noise on the silos' means (Theorem F.1 of the same paper; Appendix H for "alternate").

    A claim None is sound calibration. `refresh`, shape (m,), is the std on means of gradients.
    """

    def __init__(
        self,
        claim: Claim | None,
        *,
        clip: float,
        sizes: FloatArray,
        rounds: int,
        refresh_every: int,
        alternate: bool,
    ) -> None:
        self.refresh: FloatArray | None = None
        if claim is None:
            return
        delta = claim["delta"] / (2.0 if alternate else 1.0)
        unit = math.sqrt(-math.log(delta)) / (claim["epsilon"] * sizes)
        first, second = 16.0 * max(rounds / refresh_every, 1.0), 64.0 * rounds
        if alternate:
            first, second = 8.0 * rounds, 32.0 * rounds
        self.refresh = math.sqrt(first) * clip * unit
        self._most = math.sqrt(second) * clip * unit
        self._per_length = math.sqrt(16.0 * rounds) * unit

    def difference(self, clip: float) -> FloatArray | None:
        """Return min(sigma_2 |dw|, sigma_2hat), the noise on means of differences clipped to
        C_r = beta |dw|; without a known beta it is sigma_2hat.
        """
        return None if self.refresh is None else np.minimum(clip * self._per_length, self._most)


def admm_rho(claim: Claim) -> float:
    """Return rho with rho + 2 sqrt(rho ln(1/delta)) = epsilon, as in the authors' code."""
    log_term = math.log(1.0 / claim["delta"])
    return (math.sqrt(log_term + claim["epsilon"]) - math.sqrt(log_term)) ** 2


def admm(
    claim: Claim, *, mode: str, clip: float, prox_step: float, n: int, rounds: int, most: int
) -> float:
    """Return sigma of the table of Cyffers, Bellet, Basu (2023), whose RDP of order a is a rho.

    sigma^2 is 8 rounds C^2 gamma^2 / (rho n^2) in central mode, twice that in federated mode, and
    8 K C^2 gamma^2 ln n / (rho n) for a token that visits a user at most `most` = K times.
    """
    if mode == "token":
        per_rho = 8.0 * most * math.log(n) / n
    else:
        per_rho = (8.0 if mode == "central" else 16.0) * rounds / n**2
    return clip * prox_step * math.sqrt(per_rho / admm_rho(claim))
