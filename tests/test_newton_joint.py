"""Gradient and Hessian of one record together: the charge of the pair, searched by adversaries."""

import json
import math

import numpy as np
import pytest
from cases import for_each
from scipy import optimize

import dpkern as dpk
from dpkern import kernels
from dpkern.privacy import Budget, NoiseStream
from dpkern.privacy.certificate.ledger import Ledger
from dpkern.privacy.mechanisms.channel import SEEN_BY, Channel
from dpkern.privacy.mechanisms.hessian import BESIDE, GaussianHessian


def pair(a, b, a2, b2, c, G, h):
    """The pair's mu^2 for gradients a C, Hessians b B and rows at an angle of cosine c, G = mu_g^2
    and h = (B / s_H)^2."""
    return G * (a * a + a2 * a2 + 2 * a * a2 * c) / 4 + h * (b * b + b2 * b2 - 2 * b * b2 * c * c)


@for_each("seed", range(25))
def test_the_charge_is_the_largest_value_from_a_ratio_of_three_on(seed):
    rng = np.random.default_rng(seed)
    h = rng.uniform(0.1, 2.0)
    G = h * 3.0 * math.exp(rng.exponential())
    best = 0.0
    for start in rng.uniform(0.0, 1.0, (12, 5)):
        found = optimize.minimize(lambda v: -pair(*v, G, h), start, bounds=[(0.0, 1.0)] * 5)
        best = max(best, -found.fun)
    assert best <= (G + h) * (1 + 1e-12)
    assert best >= (G + h) * (1 - 1e-3)


def test_a_smaller_ratio_needs_more():
    assert pair(1, 1, 1, 1, 1 - math.sqrt(0.5), 2.0, 1.0) > 3.0
    assert pair(1, 1, 1, 1, 1 - math.sqrt(0.5), 8 - 4 * math.sqrt(2), 1.0) == pytest.approx(
        8 - 4 * math.sqrt(2) + 1
    )


def released(trust="central", **how):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (600, 4))
    y = np.where(X[:, 0] > 0, 1.0, -1.0)
    data = dpk.SiloData.split(X, y, 2, seed=0, row_bound=2.0)
    how = {"budget": Budget(mu=1.0), "clip": 0.5, "hess_clip": 0.2, "rng": 0} | how
    return dpk.solve("local_newton", data, trust=trust, **how)


LOSSES = ["logistic", "smoothed_hinge", "squared_hinge"]


@for_each("trust", ["central", "silo"])
@for_each("coarse", [False, True])
def test_adversarial_pairs_come_near_the_charge_and_never_above_it(trust, coarse):
    """Sums of the kernels, on the grids of the run, of data sets that differ in one record."""
    gradient, hessian = released(trust).privacy.releases
    assert hessian.what.endswith(BESIDE)

    def one(v):
        return np.atleast_1d(v)[0]

    charged = sum((one(r.sensitivity) / one(r.std)) ** 2 for r in (gradient, hessian))
    rng, largest = np.random.default_rng(5), 0.0
    q_g, q_H = one(gradient.grid), one(hessian.grid)
    if coarse:  # the largest rounding that a grid may have
        q_g = 2.0 ** math.floor(math.log2(0.5 / 32 / 2.0))
    d, w = 4, np.array([0.3, -0.2, 0.1, 0.4])
    for trial in range(400):
        loss = LOSSES[trial % 3]
        x = rng.standard_normal(d) * math.exp(rng.uniform(-1, 3))
        angle = rng.choice([0.0, 0.3, 0.75, 1.3, math.pi / 2])
        other = rng.standard_normal(d)
        other -= (other @ x) / (x @ x) * x
        length = math.exp(rng.uniform(-1, 3)) / np.linalg.norm(x)
        second = math.cos(angle) * x + math.sin(angle) * other / np.linalg.norm(
            other
        ) * np.linalg.norm(x)
        sums = []
        for row, y in ((x, 1.0), (second * length, rng.choice([-1.0, 1.0]))):
            data = dpk.SiloData(row[np.newaxis], [y], [0, 1], classes=(-1.0, 1.0))
            g = kernels.glm_gradient(data, w, loss=loss, clip=0.5, grid=q_g)[0]
            how = {"hess_clip": 0.2, "grid": q_H, "records": 600}
            H = kernels.glm_hessian(data, w, loss=loss, **how)[0]
            sums.append((g, H))
        (g, H), (g2, H2) = sums
        value = (np.linalg.norm(g - g2) / one(gradient.std)) ** 2
        value += (np.linalg.norm(H - H2) / one(hessian.std)) ** 2
        largest = max(largest, value / charged)
    assert largest <= 1.0
    assert largest >= 0.9


def test_the_noise_of_hessians_is_smaller_by_the_root_of_two_for_the_same_certificate():
    run = released()
    _, hessian = run.privacy.releases
    assert run.privacy.mu == pytest.approx(1.0, rel=1e-9)
    assert hessian.std * math.sqrt(0.2 / run.n_rounds) == pytest.approx(0.2, rel=2e-3)


@for_each(
    "how",
    [
        {"neighbours": "add_remove", "public_size": (300, 300)},
        {"trust": "silo", "calibration": "paper"},
    ],
)
def test_other_runs_are_charged_what_a_hessian_moves_alone(how):
    _, hessian = released(**how).privacy.releases
    assert BESIDE not in hessian.what


@for_each(("ratio", "smaller"), [(2.9, False), (3.1, True), (None, False)])
def test_hessians_add_less_beside_enough_gradients_alone(ratio, smaller):
    channel = Channel(Ledger(), NoiseStream(0), SEEN_BY["central"], "replace_one", None, None)
    beside = None if ratio is None else math.sqrt(ratio)
    how = {"what": "H", "hess_clip": 1.0, "dim": 3, "sizes": (100,), "mu": 1.0}
    D = GaussianHessian(channel, beside=beside, **how).sensitivity
    assert pytest.approx(1.0 if smaller else math.sqrt(2.0), rel=2e-3) == D


def plain(certificate):
    return json.loads(json.dumps(certificate.to_dict()))


def test_verification_recomputes_what_the_smaller_charge_needs():
    certificate = released(rng=None).privacy
    values = plain(certificate)
    assert dpk.verify(values).ok
    gradient, hessian = 0, 1
    for which, field, factor in (
        (gradient, "std", 1.3),
        (hessian, "sensitivity", 0.7),
        (gradient, "times", 0.5),
    ):
        forged = plain(certificate)
        release = forged["releases"][which]
        release[field] = type(release[field])(release[field] * factor)
        told = " ".join(str(check) for check in dpk.verify(forged).checks if not check.ok)
        assert "sum of clipped Hessians" in told
