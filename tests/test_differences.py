"""The smaller sensitivity of differences of gradients of a convex loss, and who is charged it."""

import math

import numpy as np
import pytest
import scipy.sparse
from adversarial import FLUSH
from cases import for_each
from makers import spy_on_calls
from pairwise import pairwise

import dpkern as dpk
from dpkern import kernels
from dpkern import reference as ref
from dpkern.kernels.grids import finest_grid
from dpkern.models.scale import curvature_of_rows
from dpkern.privacy.mechanisms.binomial_sum import BinomialSum
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.privacy.sensitivity.differences import (
    COCOERCIVE,
    ConvexDifferences,
    common_diameter,
    covered,
)
from dpkern.solvers.releases.record_sums import clipped

R = 1.5
FLAT = math.acos(1.0 / 3.0)  # to a step of 6 C / beta, where both balls end


def common_by_search(clip, centre, radius):
    """The largest distance of points that are in both discs, on the edge of what is common."""
    angle = np.linspace(0.0, math.pi, 40001)
    unit = np.stack([np.cos(angle), np.sin(angle)])
    first, second = clip * unit, radius * unit + np.array([[centre], [0.0]])
    first = first[:, np.hypot(first[0] - centre, first[1]) <= radius]
    second = second[:, np.hypot(*second) <= clip]
    edge = np.hstack([first[:, ::50], first[:, :1], first[:, -1:]])
    edge = np.hstack([edge, second[:, ::50], second[:, :1], second[:, -1:]])
    edge = np.hstack([edge, edge * np.array([[1.0], [-1.0]])]).T
    return max(np.linalg.norm(edge - v, axis=1).max() for v in edge)


@pytest.mark.proof
def test_two_balls_have_in_common_what_a_search_finds():
    rng = np.random.default_rng(0)
    for k in range(24):
        clip, centre = 2.0 ** rng.uniform(-2, 2, 2)
        radius = centre * (1.0, 1.01, 1.3)[k % 3]
        found, bound = common_by_search(clip, centre, radius), common_diameter(clip, centre, radius)
        assert found <= bound <= found * (1.0 + 1e-3)


def test_without_rounding_it_is_the_formula_of_the_text():
    for b, C in ((0.3, 1.0), (1.0, 1.0), (1.4, 1.0), (2.0, 1.0), (2.0, 0.5), (1e3, 1.0)):
        D = ConvexDifferences(C, b, 0.0, 5).sensitivity(0.0)
        expected = b if b <= math.sqrt(2.0) * C else 2.0 * C * math.sqrt(1.0 - (C / b) ** 2)
        assert expected <= D <= min(expected * (1.0 + 2.0**-17), 2.0 * C)


def ball_of(dim, loss, w_new, w_old, clip, gradient_clip):
    beta = curvature_of_rows(loss.smoothness, R)
    norms = float(np.linalg.norm(w_new) + np.linalg.norm(w_old))
    public = {"curvature": loss.smoothness, "row_bound": R, "norms": norms}
    assert covered(clip=gradient_clip, dim=dim, reach=beta * norms, **public)
    diameter = max(beta * float(np.linalg.norm(w_new - w_old)), 2.0**-20 * gradient_clip)
    return ConvexDifferences(clip, diameter, beta * norms, dim)


def steepest(loss):
    """A margin, for the label 1, around which the loss has its largest curvature."""
    if loss.name == "probit":
        return 0.01 - loss.high
    return {"smoothed_hinge": 0.65, "squared_hinge": 0.97}.get(loss.name, 0.0)


def frame(rng, p):
    """Three orthonormal directions, or fewer in fewer dimensions."""
    return np.linalg.qr(rng.standard_normal((p, 3)))[0].T


def adversarial_records(loss, frame, near, p):
    """Rows at 45 degrees to the step where the loss is steepest, and rows hard on doubles.

    Those along the third direction have products with the step that are rounding errors.
    """
    u, e = frame[:2]
    far = frame[-1]
    sign = np.array([1.0, -1.0])
    pairs = [(u + e, 1.0), (u - e, -1.0)]
    turned = [math.cos(a) * u + math.sin(a) * e for a in (*np.linspace(-1.5, 1.5, 7), FLAT, -FLAT)]
    pairs += [(x, s) for x in turned for s in sign]
    pairs += [(s * far + t * u, 1.0) for s in sign for t in (0.0, near, 1e-17)]
    sizes = (1e-170, 5e-324, 0.3, 1e3, 1e150, 1e300)
    X = np.array([size * x for size in sizes for x, _ in pairs])
    y = np.array([label for _ in sizes for _, label in pairs])
    if loss.task == "regression":
        y *= np.repeat(
            [[0.0, 0.0] + (len(pairs) - 2) * [1e-3, 0.0, 1e300][:1]], len(sizes), 0
        ).ravel()
    return X, y


FORMS = ("double", "intercept", "single", "csr", "affine")


@pytest.mark.proof
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pairwise("isa", "loss", form=FORMS, p=[2, 13, 70, 1100], flush=[0, FLUSH])
def test_two_records_of_a_convex_loss_differ_by_no_more_than_is_charged(
    bare_records, longer, control_bits, loss, form, p, flush
):
    """In rational arithmetic, and some pair by nearly as much."""
    rng, most, intercept = np.random.default_rng(p), {}, form == "intercept"
    for near, wide in ((0.02, 0.0), (0.02, 1e3), (1e-6, 1e9), (1e-15, 1e3)):
        directions = frame(rng, p)
        middle = steepest(loss) * math.sqrt(2.0) / R * directions[1] + wide * directions[-1]
        w_new, w_old = (
            np.append(middle + s * near * directions[0], np.zeros(int(intercept)))
            for s in (0.5, -0.5)
        )
        X, y = adversarial_records(loss, directions, near, p)
        options = {"row_bound": R, "intercept": intercept}
        if form == "affine":
            options |= {"scale": np.full(p, 0.3), "shift": np.full(p, 1e-12)}
        if form == "single":
            X = np.clip(X, -1e30, 1e30).astype(np.float32)
        X = scipy.sparse.csr_array(X) if form == "csr" else X
        each = bare_records(X, y, np.arange(len(y) + 1), **options)
        length = curvature_of_rows(loss.smoothness, R) * float(np.linalg.norm(w_new - w_old))
        for share in (0.01, 0.1, 1.0, 2.5, 6.0):
            C = max(length, 1e-12) / share
            C_r = min(2.0 * C, max(length, 2.0**-20 * C))
            ball = ball_of(each.d, loss, w_new, w_old, C_r, C)
            for q in (finest_grid(2, C_r), 2.0 ** math.floor(math.log2(C_r / 2**12 / p))):
                how = {"loss": loss, "clip": C_r, "gradient_clip": C, "grid": q}
                with control_bits(flush):
                    V = kernels.glm_difference(each, w_new, w_old, curvature=loss.smoothness, **how)
                D = ball.sensitivity(q)
                far = np.linalg.norm(V[:, None] - V[None], axis=2)
                worst = np.argsort(far.ravel())[-2:]
                for i, j in zip(*np.unravel_index(worst, far.shape), strict=True):
                    assert not longer(V[i] - V[j], q, D), (near, wide, share)
                most[share] = max(most.get(share, 0.0), far.max() / D)
    if loss.log_link or loss.name == "cloglog":
        return  # which is curved most at few margins
    assert (min if loss.name == "squared" else max)(most.values()) >= 0.9


@pytest.mark.usefixtures("isa")
def test_a_product_of_the_wrong_sign_by_rounding_is_within_the_slack(bare_records, longer):
    """Far models a rounding error apart; without its slack the bound would be passed."""
    rng, beyond = np.random.default_rng(1), 0.0
    for _ in range(30):
        p = int(rng.integers(2, 40))
        w_old = 1e6 * rng.standard_normal(p)
        w_new = w_old * (1.0 + rng.integers(-2, 3, p) * 2.0**-52)
        u = w_new - w_old
        if not np.any(u):
            continue
        X = rng.standard_normal((40, p))
        X -= np.outer(X @ u, u) / (u @ u)
        X = np.vstack([X, -X])
        each = bare_records(X, np.zeros(80), np.arange(81), row_bound=R)
        ball = ball_of(p, dpk.models.losses.Squared(), w_new, w_old, 1.0, 1e-7)
        q = 2.0**-51
        V = kernels.glm_difference(
            each, w_new, w_old, loss="squared", curvature=1.0, clip=1.0, grid=q
        )
        far = np.linalg.norm(V[:, None] - V[None], axis=2)
        i, j = np.unravel_index(far.argmax(), far.shape)
        assert not longer(V[i] - V[j], q, ball.sensitivity(q))
        beyond = max(beyond, far.max() / ball.diameter)
    assert beyond > 1.05


@pairwise("isa", "layout", "loss")
def test_the_bound_of_a_loss_changes_its_differences_by_rounding_only(make, layout, loss):
    data = make(n=400, **layout)
    new, old = 0.3 * np.random.default_rng(2).standard_normal((2, data.m, data.d))
    batch = np.arange(0, data.n, 3), np.searchsorted(np.arange(0, data.n, 3), data.offsets)
    for gradient_clip in (0.4, math.inf):
        for rows in (None, batch):
            how = {"loss": loss, "clip": 0.7, "gradient_clip": gradient_clip, "rows": rows}
            free = kernels.glm_difference(data, new, old, **how)
            bounded = kernels.glm_difference(data, new, old, curvature=loss.smoothness, **how)
            np.testing.assert_allclose(bounded, free, rtol=1e-10, atol=1e-11)
            small = {"curvature": 0.05 * loss.smoothness, "grid": 2.0**-40} | how
            found = kernels.glm_difference(data, new, old, **small)
            by_numpy = ref.glm_difference(data, new, old, **small)
            np.testing.assert_allclose(found, by_numpy, rtol=1e-12, atol=data.n * 2.0**-40)
    assert np.max(np.abs(found - free)) > 1e-3


@pairwise("isa", "loss", p=[9, 1024, 2200])
def test_bounded_differences_have_the_same_bits_with_margins_kept(make, loss, p):
    data = make(n=60, p=p, m=2, intercept=True, row_bound=20.0)
    path = np.random.default_rng(3).standard_normal((3, data.d)) / math.sqrt(p)
    how = {"loss": loss, "clip": 0.3, "gradient_clip": 0.4, "curvature": 0.1 * loss.smoothness}
    fresh = [kernels.glm_difference(data, path[k + 1], path[k], **how) for k in range(2)]
    margins = kernels.glm_margins(data, path[0])
    for k, first in enumerate(fresh):
        kept = kernels.glm_difference(
            data, path[k + 1], path[k], margins=margins, new_margins=margins, **how
        )
        np.testing.assert_array_equal(kept, first)
        np.testing.assert_array_equal(margins, kernels.glm_margins(data, path[k + 1]))


@for_each("bad", [0.0, -1.0, math.nan])
def test_a_curvature_that_is_not_positive_is_refused(make, bad):
    with pytest.raises(ValueError, match="curvature must be"):
        kernels.glm_difference(
            make(), np.zeros(11), np.ones(11), loss="logistic", clip=1.0, curvature=bad
        )


C, DELTA = 0.5, 1e-6


def silos(n=60, m=3, **options):
    rng = np.random.default_rng(4)
    X = rng.standard_normal((n, 4))
    y = np.where(X[:, 0] + rng.standard_normal(n) > 0.0, 1, -1)
    return dpk.SiloData.split(X, y, m=m, seed=0, **{"row_bound": R} | options)


def solve(solver, data=None, **options):
    defaults = {
        "budget": dpk.Budget(epsilon=2.0, delta=DELTA), "clip": C, "rounds": 6, "trust": "silo",
        "step_size": 0.4, "refresh_every": 3, "rng": 1,
    }  # fmt: skip
    return dpk.solve(solver, silos() if data is None else data, **defaults | options)


@pytest.fixture
def steps_of(monkeypatch):
    """Every difference."""
    return spy_on_calls(monkeypatch, kernels, "glm_difference")


def charged(result):
    return [
        (float(np.max(release.sensitivity)), float(np.max(release.grid)))
        for release in result.privacy.releases
        if "differences" in release.what
        for _ in range(release.times)
    ]


@pytest.mark.parametrize("trust", ["silo", "central"])
@pytest.mark.parametrize("options", [
    {}, {"step_size": 3.0}, {"variant": "alternate", "step_size": 1.0}, {"solver": "prox_svrg"},
    {"solver": "prox_pl_svrg", "restarts": 2, "refresh_every": 3},
    {"sampling": "without_replacement", "batch_size": 7},
    {"weights": "uniform"},
], ids=str)  # fmt: skip
def test_solvers_charge_what_the_ball_and_the_clip_have_in_common(steps_of, trust, options):
    options = {"solver": "spider", "trust": trust} | options
    if options["solver"] != "spider" and "variant" in options:
        return
    result = solve(options.pop("solver"), **options)
    found = charged(result)
    assert len(found) == len(steps_of) > 0
    for (D, grid), ((_, new, old), how, _) in zip(found, steps_of, strict=True):
        clip, distance = how["clip"], np.linalg.norm(new - old)
        b = max(curvature_of_rows(0.25, R) * distance, 2.0**-20 * C)
        nominal = b if b <= math.sqrt(2) * clip else 2 * clip * math.sqrt(1 - (clip / b) ** 2)
        assert how["curvature"] == 0.25
        assert nominal <= D <= nominal * (1.0 + 1e-5) + 3.0 * grid * math.sqrt(result.w.size)
    assert COCOERCIVE in result.privacy.notes
    assert 0.999 * 2.0 < result.privacy.epsilon(DELTA) <= 2.0


@for_each("step_size", [0.02, 50.0])
@for_each("name", ["spider", "prox_svrg"])
def test_the_certificate_of_a_papers_noise_does_not_depend_on_what_was_released(name, step_size):
    """The models decide how short a difference is, and the paper's noise is not in proportion."""
    how = {"calibration": "paper", "trust": "silo", "step_size": step_size}
    found = [solve(name, **how | {"rng": seed}).privacy.mu for seed in range(8)]
    assert max(found) <= (1.0 + 1e-12) * min(found)


def test_without_a_row_bound_or_a_budget_nothing_is_assumed(steps_of):
    free = solve("spider", silos(row_bound=math.inf))
    assert [D for D, _ in charged(free)] == [2.0 * call.how["clip"] for call in steps_of]
    noiseless = solve("spider", budget=None)
    assert [call.how.get("curvature") for call in steps_of] == [None] * 8
    assert not {COCOERCIVE} & {*free.privacy.notes, *noiseless.privacy.notes}


def test_a_loss_that_is_not_convex_is_charged_two_clips(steps_of, monkeypatch):
    monkeypatch.setattr(dpk.models.losses.Logistic, "convex", False)
    result = solve("spider")
    for (D, _), call in zip(charged(result), steps_of, strict=True):
        assert (2.0 * call.how["clip"], call.how.get("curvature")) == (D, None)
    assert COCOERCIVE not in result.privacy.notes


def test_beyond_the_magnitudes_of_the_proof_two_clips_are_charged():
    fine = {"clip": 1.0, "curvature": 0.25, "row_bound": 1.0, "reach": 1.0, "norms": 1.0, "dim": 9}
    assert covered(**fine)
    for name in ("clip", "curvature", "row_bound", "reach", "norms"):
        assert not covered(**fine | {name: 2.0**101})
    assert not covered(**fine | {"clip": 2.0**-101})
    assert not covered(**fine | {"dim": 1 << 29})
    assert not covered(**fine | {"row_bound": math.inf, "reach": math.inf})


@for_each("weights", ["size", "uniform"])
def test_shuffled_differences_are_clipped_around_the_centre_of_their_ball(monkeypatch, weights):
    """Half the noise; without noise, what is released is the sum of the differences."""
    seen, release = [], BinomialSum.release

    def spy(mechanism, V, *, bound, **more):
        seen.append((np.array(V), bound))
        release(mechanism, V, bound=bound, **more)
        return np.sum(clipped(V, bound), axis=0)  # without noise

    data = dpk.SiloData(*(lambda d: (d.X, d.y))(silos()), [0, 10, 25, 60], row_bound=R)
    monkeypatch.setattr(BinomialSum, "release", spy)
    how = {"trust": "shuffle", "weights": weights}
    ours = solve("spider", data, **how)
    exact = solve("spider", data, budget=None, clip=C, trust="central", weights=weights)
    np.testing.assert_allclose(ours.w, exact.w, rtol=1e-9, atol=1e-12)
    radii = [(np.linalg.norm(V, axis=1).max(), bound) for V, bound in seen]
    shorter = [bound for largest, bound in radii if bound != C]
    assert len(shorter) == 4
    assert all(largest <= bound * (1.0 + 1e-12) for largest, bound in radii if bound != C)


@for_each("solver", ["spider", "prox_svrg"])
@for_each("trust", ["silo", "central"])
def test_neighbours_on_the_same_releases_part_by_no_more_than_is_charged(
    monkeypatch, longer, solver, trust
):
    """Records replaced in a run: the sums before noise, in rational arithmetic."""
    seen, release = [], GaussianSum.release

    def deaf(mechanism, total, **more):
        seen.append((np.array(total), mechanism.sensitivity, mechanism.grid))
        noise = release(mechanism, total, **more)
        t = len(seen)
        return np.resize(np.sin(np.arange(noise.size) + t), noise.shape) * 2.0

    monkeypatch.setattr(GaussianSum, "release", deaf)
    X = np.random.default_rng(5).standard_normal((30, 2))
    most, runs = 0.0, []
    for angle in np.linspace(0.0, 2 * math.pi, 24, endpoint=False):
        X[4] = 1e3 * np.array([math.cos(angle), math.sin(angle)])
        data = dpk.SiloData(X, np.zeros(30), [0, 12, 30], row_bound=R, task="regression")
        seen.clear()
        solve(solver, data, loss="squared", clip=50.0, step_size=0.05, trust=trust)
        runs.append(list(seen))
    for of_round in zip(*runs, strict=True):
        totals = [total.reshape(len(grid), -1) for total, _, grid in of_round]
        D, grid = of_round[0][1:]
        for a in totals:
            for b in totals:
                assert not longer((a - b)[0], grid[0], D)
                most = max(most, float(np.linalg.norm(a - b)) / D * (D < 100.0))
    assert most >= 0.9
