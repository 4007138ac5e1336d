"""Certificates of the proofs in docs/proofs, against dp-accounting and exact laws of the noise.

The ledger's sensitivities and noise are all that is taken from a run. Other tests show that the
sensitivities hold (test_differences, test_newton_joint, test_local_runs), and compare secret
samples with dp-accounting (test_sampled_pairs): here is what they come to. Every setting is random,
and a figure must be at least the true one, and at most a thousandth more.
"""

import functools
import math

import numpy as np
from cases import for_each
from dp_accounting.pld import privacy_loss_distribution as pld
from makers import ratios
from scipy import stats

import dpkern as dpk
from dpkern.privacy import Certificate, Release
from dpkern.privacy.certificate.ledger import Ledger
from dpkern.privacy.guarantees.binomial import shuffle_sensitivity

THOUSANDTH = 1.0 + 1e-3


@functools.cache
def data(m=3, n=40):
    rng = np.random.default_rng(m)
    X = rng.standard_normal((m * n, 4))
    y = np.where(X[:, 0] + rng.standard_normal(m * n) > 0.0, 1, -1)
    return dpk.SiloData.split(X, y, m=m, seed=0, row_bound=1.5)


def composed(found):
    """dp-accounting's loss distribution of Gaussian releases, by the law of each.

    Rounding of losses errs upwards, by 1e-5 of epsilon.
    """
    total = math.sqrt(math.fsum(ratio**2 for ratio in found))
    interval = total / (400.0 * math.sqrt(len(found)))
    whole = None
    for ratio in set(found):
        one = pld.from_gaussian_mechanism(1.0 / ratio, value_discretization_interval=interval)
        one = one.self_compose(found.count(ratio)) if found.count(ratio) > 1 else one
        whole = one if whole is None else whole.compose(one)
    return whole


def assert_composed(certificate, m, delta):
    """The certified epsilon is the largest over silos of that of its releases."""
    kinds = {tuple(sorted(ratios(certificate.releases, j))) for j in range(m)} - {()}
    true = max(composed(kind).get_epsilon_for_delta(delta) for kind in kinds)
    assert true * (1.0 - 1e-5) <= certificate.epsilon(delta) <= true * THOUSANDTH


def setting(seed):
    """Numbers of a run, and the delta at which it is compared."""
    rng = np.random.default_rng(seed)
    mu, delta = float(np.exp(rng.uniform(-1.5, 1.2))), float(10.0 ** rng.uniform(-8.0, -3.0))
    clip = float(rng.uniform(0.2, 2.0))
    return rng, {"budget": dpk.Budget(mu=mu), "clip": clip, "rng": 1}, delta


@for_each("seed", range(20))
def test_differences(seed):
    rng, how, delta = setting(seed)
    solver = ("spider", "prox_svrg", "prox_pl_svrg")[seed % 3]
    trust = ("silo", "central")[seed % 2]
    loss = ("logistic", "smoothed_hinge", "squared_hinge")[seed // 2 % 3]
    rounds, q = int(rng.integers(3, 9)), int(rng.integers(2, 4))
    step = float(10.0 ** rng.uniform(-2.0, 0.5))
    how |= {"rounds": rounds, "refresh_every": q, "loss": loss, "step_size": step}
    certificate = dpk.solve(solver, data(), trust=trust, **how).privacy
    kinds = {r.what for r in certificate.releases}
    assert kinds == {"sum of clipped gradients", "sum of clipped differences of gradients"}
    assert_composed(certificate, 3, delta)


@for_each("seed", range(20))
def test_gradients_with_hessians_beside_them(seed):
    rng, how, delta = setting(100 + seed)
    how |= {"rounds": int(rng.integers(1, 12)), "hess_clip": float(rng.uniform(0.05, 0.5))}
    certificate = dpk.solve("local_newton", data(), trust=("silo", "central")[seed % 2], **how)
    certificate = certificate.privacy
    assert certificate.releases[1].what.endswith(", beside gradients at the same models")
    assert_composed(certificate, 3, delta)


@for_each("seed", range(20))
def test_series(seed):
    rng, how, delta = setting(200 + seed)
    rounds, K = int(rng.integers(3, 7)), int(rng.integers(1, 4))
    steps = np.exp(rng.uniform(-4.0, -1.0, (rounds, K)))
    how |= {"rounds": rounds, "local_steps": K, "step_size": steps.ravel(), "noise": "round"}
    how |= {"sampling": "cyclic", "batch_size": int(rng.integers(1, 12))}
    certificate = dpk.solve("local_sgd", data(), trust=("silo", "central")[seed % 2], **how).privacy
    assert len(certificate.releases) == rounds
    assert_composed(certificate, 3, delta)


def exact_epsilon(coins, shift, times, delta):
    """Epsilon of so many releases of Bin(coins, 1/2), of which one record moves each by `shift`.

    By the exact law of all losses, which are those of counts, for one release, and rounded to a
    fine grid for several: down, which makes the figure smaller.
    """
    half = int(9.0 * math.sqrt(coins)) + shift
    k = np.arange(coins // 2 - half, coins // 2 + half + 1)
    log_p = stats.binom.logpmf(k, coins, 0.5)
    p, loss = np.exp(log_p), log_p - stats.binom.logpmf(k - shift, coins, 0.5)
    if times > 1:
        interval = loss.std() / 20000.0
        places = np.floor(loss / interval).astype(np.int64)
        first = int(places.min())
        weights = np.bincount(places - first, p)
        size = 1 << (times * len(weights)).bit_length()
        p = np.fft.irfft(np.fft.rfft(weights, size) ** times, size)
        p, loss = np.maximum(p - 1e-18, 0.0), (np.arange(size) + times * first) * interval

    order = np.argsort(loss)[::-1]
    loss, p = loss[order], p[order]
    above, below = np.cumsum(p), np.cumsum(p * np.exp(-loss))

    def excess(epsilon):
        i = np.searchsorted(-loss, -epsilon) - 1
        return above[i] - math.exp(epsilon) * below[i] - delta

    low, high = 0.0, 60.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if excess(middle) > 0.0 else (low, middle)
    return low


@for_each("seed", range(20))
def test_coins(seed):
    """A record that moves the counts of one coordinate by all that the sensitivity allows.

    For a million coins and more; below the bound is looser (docs/proofs/shuffle.md).
    """
    rng = np.random.default_rng(seed)
    coins, times = int(10.0 ** rng.uniform(6.0, 7.0)), int(rng.integers(1, 4))
    g = max(1, int(0.5 * math.sqrt(coins) * rng.uniform(0.1, 1.0)))
    delta = 10.0 ** rng.uniform(-7.0, -3.0)
    counts = {"sensitivity": shuffle_sensitivity(g, 1), "std": math.sqrt(coins) / 2.0, "grid": 1.0}
    counts |= {"dim": 1, "times": times, "coins": coins}
    ledger = Ledger()
    ledger.append(Release(what="counts", seen_by="all", **counts))
    found = Certificate.from_ledger(ledger, trust="shuffle", noise="os").epsilon(delta)
    true = exact_epsilon(coins, g + 1, times, delta)
    assert true * (1.0 - 1e-6) <= found <= true * THOUSANDTH
