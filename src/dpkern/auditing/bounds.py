"""Lower bounds of privacy from the scores of an attack.

An attack gives every run, or every canary, a score, and says "in" from a threshold on. Its error
rates bound the guarantee from below: of mu-GDP (Dong, Roth, Su 2019, eq. 6), of (epsilon, delta)
(Kairouz, Oh, Viswanath 2015) with the exact confidence limits of Clopper and Pearson, and with the
canaries of one run (Steinke, Nasr, Jagielski 2023; Mahloujifar, Melis, Chaudhuri 2024).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special

from dpkern._numbers import real
from dpkern._typing import FloatArray
from dpkern.privacy.guarantees.gdp import gdp_epsilon, gdp_mu

Method = Literal["clopper_pearson", "gdp", "one_run", "one_run_fdp"]

METHODS = ("clopper_pearson", "gdp", "one_run", "one_run_fdp")


@dataclass(frozen=True)
class Counts:
    """What an attack said at a threshold: `positives` of n_in in, `false` of n_out out, as "in"."""

    n_in: int
    n_out: int
    positives: int
    false: int


@dataclass(frozen=True)
class ScoreAudit:
    """A lower bound of privacy from scores.

    Attributes
    ----------
    epsilon : float
        With the confidence, the mechanism is not (e, delta)-DP for any e below epsilon; 0 says
        nothing. With the methods "gdp" and "one_run_fdp" that holds of a mechanism whose trade-off
        of errors is Gaussian, and of no other.
    mu : float or None
        The same of mu-GDP, of the method "gdp".
    delta, confidence : float
    method : str
    threshold : float
        The score from which on the attack says "in".
    counts : Counts
        Of the scores that the bound is from.
    kinds : pair of str
        What the scores are of: records in and out, or the guesses of coins.
    """

    epsilon: float
    mu: float | None
    delta: float
    confidence: float
    method: str
    threshold: float
    counts: Counts
    kinds: tuple[str, str] = ("in", "out")

    def __str__(self) -> str:
        c, of_mu = self.counts, "" if self.mu is None else f"mu at least {self.mu:.4g}, "
        inside, outside = self.kinds
        gaussian = self.method in ("gdp", "one_run_fdp")
        return (
            f"{of_mu}epsilon at least {self.epsilon:.4g} at delta {self.delta:g}"
            f"{' if its trade-off is Gaussian' if gaussian else ''}, with confidence "
            f"{self.confidence:g} ({self.method}; {c.positives} of {c.n_in} {inside} and {c.false} "
            f"of {c.n_out} {outside} have a score from {self.threshold:.4g} on)"
        )


def audit_scores(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    *,
    method: Method = "clopper_pearson",
    confidence: float = 0.95,
    delta: float = 1e-5,
    threshold: float | None = None,
) -> ScoreAudit:
    """Bound privacy from below by the scores of an attack.

    Parameters
    ----------
    in_scores, out_scores : array_like of shape (n_in,) and (n_out,)
        Scores with and without the record, or of canaries that were used and of others; higher ones
        mean "in".
    method : {"clopper_pearson", "gdp", "one_run", "one_run_fdp"}
        The first two need scores of independent runs: "clopper_pearson" bounds epsilon at delta of
        any mechanism, and "gdp" mu, which is the sharper bound for Gaussian noise; no epsilon but a
        Gaussian mechanism's follows from mu. The others take the canaries of one run, each of which
        was in or out by a fair coin of its own: "one_run" bounds epsilon at delta, and
        "one_run_fdp" the Gaussian trade-off whose epsilon at delta it gives.
    confidence : float
        In (0.5, 1).
    delta : float
        In (0, 1), or 0 with "clopper_pearson".
    threshold : float, optional
        Chosen before the scores were seen. By default every second score of either kind, in the
        given order, chooses it, and the others are what the bound is from. Of the canaries of one
        run a random half does, drawn anew by every call, of which the first counts and not the one
        with the largest bound: places in a list would tell of other canaries' coins.

    Returns
    -------
    ScoreAudit

    Raises
    ------
    TypeError, ValueError
        When scores are missing, not numbers or NaN, or an argument is out of range.

    Notes
    -----
    With a given threshold the bounds are those of the class CanaryScoreAuditor of JAX Privacy:
    `epsilon_clopper_pearson(one_sided=False)`, `epsilon_one_run` and `epsilon_one_run_fdp`; that of
    `epsilon_from_gdp` takes all thresholds of its scores and pays for their number.
    """
    if method not in METHODS:
        raise ValueError(f"method must be {' or '.join(map(repr, METHODS))}, got {method!r}")
    require_confidence(confidence)
    delta = real("delta", delta)
    if not (0.0 < delta < 1.0 or (delta == 0.0 and method == "clopper_pearson")):
        raise ValueError(f"delta must be in (0, 1), got {delta!r}")
    inside, outside = _scores("in_scores", in_scores), _scores("out_scores", out_scores)
    if threshold is None:
        if min(len(inside), len(outside)) < 2:
            raise ValueError("in_scores and out_scores must have 2 entries each, without threshold")
        choose = [np.arange(len(scores)) % 2 == 0 for scores in (inside, outside)]
        if method in ("one_run", "one_run_fdp"):
            # Of no seed: with the same places in every call, what is counted would have more of
            # one kind than fair coins give.
            generator = np.random.default_rng()
            choose = [generator.random(len(scores)) < 0.5 for scores in (inside, outside)]
        halves = inside[choose[0]], outside[choose[1]]
        some = any(map(len, halves))
        threshold = best_threshold(*halves, method, confidence, delta) if some else math.inf
        inside, outside = inside[~choose[0]], outside[~choose[1]]
    elif math.isnan(threshold := real("threshold", threshold)):
        raise ValueError("threshold must be a number, got nan")
    counts = _counts(inside, outside, threshold)
    mu = mu_lower(counts, confidence) if method == "gdp" else None
    epsilon = _EPSILON[method](counts, confidence, delta)
    return ScoreAudit(epsilon, mu, delta, confidence, method, float(threshold), counts)


def require_confidence(confidence: float) -> None:
    """Raise TypeError or ValueError for what is no confidence of a bound."""
    if not 0.5 < real("confidence", confidence) < 1.0:
        raise ValueError(f"confidence must be in (0.5, 1), got {confidence!r}")


def best_threshold(
    inside: FloatArray, outside: FloatArray, method: str, confidence: float, delta: float
) -> float:
    """Return the threshold at which these scores give the largest bound.

    Limits are of more confidence than all thresholds together need: else a tail that is empty by
    chance would win. Of one run's canaries, the share of right guesses is what counts.
    """
    thresholds = _thresholds(inside, outside)
    cautious = 1.0 - (1.0 - confidence) / len(thresholds) ** 2
    missed = np.searchsorted(np.sort(inside), thresholds)
    false = len(outside) - np.searchsorted(np.sort(outside), thresholds)
    if method in ("one_run", "one_run_fdp"):
        bound = -_upper_limit(false, len(inside) - missed + false, cautious)
    else:
        quantile = 0.5 + 0.5 * cautious
        beta = _upper_limit(missed, len(inside), quantile)
        alpha = _upper_limit(false, len(outside), quantile)
        if method == "gdp":
            bound = -special.ndtri(alpha) - special.ndtri(beta)
        else:
            bound = np.maximum((1.0 - beta - delta) / alpha, (1.0 - alpha - delta) / beta)
    return float(thresholds[np.argmax(bound)])


def _thresholds(inside: FloatArray, outside: FloatArray) -> FloatArray:
    """Return about 256 thresholds, more of them in the tails, which small deltas need."""
    scores = np.sort(np.concatenate([inside, outside]))
    tail = np.arange(min(len(scores), 64))
    middle = np.linspace(0, len(scores) - 1, 128).astype(int)
    chosen: FloatArray = scores[np.unique(np.concatenate([tail, middle, len(scores) - 1 - tail]))]
    return chosen


def _upper_limit(k: ArrayLike, n: ArrayLike, confidence: float) -> FloatArray:
    """Return the upper limit of Clopper and Pearson of the rate of k in n, 1 without any."""
    k, n = np.asarray(k), np.asarray(n)
    limit: FloatArray = special.betaincinv(k + 1.0, np.maximum(n - k, 1.0), confidence)
    return np.where(k < n, limit, 1.0)


def _counts(inside: FloatArray, outside: FloatArray, threshold: float) -> Counts:
    return Counts(
        len(inside),
        len(outside),
        int(np.count_nonzero(inside >= threshold)),
        int(np.count_nonzero(outside >= threshold)),
    )


def error_rates(counts: Counts, confidence: float) -> tuple[float, float]:
    """Return upper limits of the rates of "out" said inside and of "in" said outside."""
    c, quantile = counts, 0.5 + 0.5 * confidence
    missed = _upper_limit(c.n_in - c.positives, c.n_in, quantile)
    return float(missed), float(_upper_limit(c.false, c.n_out, quantile))


def error_curves(
    inside: FloatArray, outside: FloatArray, confidence: float
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Return pairs of false alarms and misses over thresholds, and upper limits of each pair."""
    thresholds = np.quantile(np.concatenate([inside, outside]), np.linspace(0.0, 1.0, 201))
    every = [_counts(inside, outside, t) for t in thresholds]
    limits = [error_rates(c, confidence)[::-1] for c in every]
    return [(c.false / c.n_out, 1.0 - c.positives / c.n_in) for c in every], limits


def mu_lower(counts: Counts, confidence: float) -> float:
    """Return the least mu whose Gaussian trade-off allows these error rates."""
    missed, false = error_rates(counts, confidence)
    return max(float(-special.ndtri(false) - special.ndtri(missed)), 0.0)


def _epsilon_of_rates(counts: Counts, confidence: float, delta: float) -> float:
    """Kairouz, Oh, Viswanath 2015, Theorem 2.1, in both directions."""
    missed, false = error_rates(counts, confidence)
    odds = [
        (1.0 - beta - delta) / alpha for alpha, beta in ((false, missed), (missed, false)) if alpha
    ]
    return math.log(max(*odds, 1.0))


def _epsilon_of_mu(counts: Counts, confidence: float, delta: float) -> float:
    mu = mu_lower(counts, confidence)
    return gdp_epsilon(mu, delta) if mu else 0.0


def _epsilon_of_one_run(counts: Counts, confidence: float, delta: float) -> float:
    """Steinke, Nasr, Jagielski 2023, Theorem 5.2: guesses of "in" alone are counted."""
    c = counts
    guesses = c.positives + c.false
    if not guesses:
        return 0.0

    def p_value(epsilon: float) -> float:
        q = special.expit(epsilon)
        tail = special.bdtrc(c.positives - 1, guesses, q)
        i = np.arange(1, c.positives + 1)
        more = special.bdtrc(c.positives - i - 1, guesses, q) - tail
        return float(tail + np.max(more / i, initial=0.0) * delta * 2 * (c.n_in + c.n_out))

    return _largest_refuted(lambda epsilon: 1.0 - confidence - p_value(epsilon))


def _epsilon_of_one_run_fdp(counts: Counts, confidence: float, delta: float) -> float:
    """Mahloujifar, Melis, Chaudhuri 2024, Algorithm 3, for Gaussian trade-offs."""
    c = counts
    m, guesses = c.n_in + c.n_out, c.positives + c.false

    def excess(epsilon: float) -> float:
        mu = gdp_mu(epsilon, delta)
        r = (1.0 - confidence) * c.positives / m
        h = (1.0 - confidence) * c.false / m
        for i in range(c.positives - 1, -1, -1):
            least = max(h, float(special.ndtr(special.ndtri(r) - mu)))
            if least == h:
                break  # nothing changes any more
            h, r = least, min(r + i / (guesses - i) * (least - h), 1.0)
        return r + h - guesses / m

    return _largest_refuted(excess) if guesses else 0.0


def _largest_refuted(refutes: Callable[[float], float]) -> float:
    """Return the root of a decreasing function of epsilon, or 0."""
    low, high = 0.0, 1.0
    if refutes(low) <= 0.0:
        return 0.0
    while refutes(high) > 0.0:
        low, high = high, 2.0 * high
    return float(optimize.brentq(refutes, low, high, xtol=1e-6))


_EPSILON: dict[str, Callable[[Counts, float, float], float]] = {
    "gdp": _epsilon_of_mu,
    "clopper_pearson": _epsilon_of_rates,
    "one_run": _epsilon_of_one_run,
    "one_run_fdp": _epsilon_of_one_run_fdp,
}


def _scores(name: str, given: ArrayLike) -> FloatArray:
    if np.iscomplexobj(given):
        raise TypeError(f"{name} must be real numbers, got complex ones")
    try:
        scores = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a list of real numbers, got others") from None
    if scores.ndim != 1 or not scores.size:
        raise ValueError(f"{name} must have one dimension and an entry, got shape {scores.shape}")
    if np.isnan(scores).any():
        raise ValueError(f"{name} must not be NaN, got {int(np.isnan(scores).sum())} of them")
    return scores
