"""Neighbours that differ in one record more: sensitivities, and that true sizes reach nothing."""

import itertools
import math
import sys
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from cases import for_each
from makers import BUDGET, assert_refused, recomputed_mu, spy_on_calls, square, transcript
from pairwise import pairwise

import dpkern as dpk
from dpkern import kernels
from dpkern import reference as ref
from dpkern.kernels.grids import hessian_row_grid
from dpkern.privacy import NoiseStream, compose_parallel, compose_sequential
from dpkern.privacy.certificate.ledger import Ledger
from dpkern.privacy.mechanisms.channel import Channel
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.privacy.mechanisms.hessian import GaussianHessian
from dpkern.privacy.mechanisms.messages import GaussianMessages
from dpkern.privacy.sensitivity.grids import choose_grid, grid_records, total_on_grid
from dpkern.solvers import SOLVERS
from dpkern.solvers.base import settings

SIZES, PUBLIC = (7, 40, 41), (10, 32, 64)
CASES = [
    ("gradient_descent", {}),
    ("gradient_descent", {"public_size": 100}),
    ("gradient_descent", {"weights": "uniform"}),
    ("gradient_descent", {"trust": "silo"}),
    ("gradient_descent", {"trust": "silo", "weights": "uniform"}),
    ("federated_gd", {}),
    ("federated_gd", {"trust": "silo"}),
    ("local_newton", {"trust": "silo"}),
    ("local_newton", {"public_size": 100}),
    ("local_newton", {"weights": "uniform"}),
    ("local_newton", {"trust": "silo", "local_steps": 2}),
    ("local_newton", {"trust": "silo", "step_size": "private_search"}),
    ("local_newton", {"step_size": "private_search"}),
    ("ridge", {"loss": "logistic"}),
    ("ridge", {"trust": "silo", "weights": "uniform", "loss": "logistic"}),
    ("newton_inference", {"public_size": 100}),
    ("double_noise_newton", {}),
    ("double_noise_newton", {"variant": "clip", "public_size": 100}),
    ("double_noise_newton", {"weights": "uniform"}),
    ("minibatch_sgd", {"trust": "silo"}),
    ("minibatch_sgd", {"weights": "uniform"}),
    ("local_sgd", {"trust": "silo", "local_steps": 2}),
]
ABLE = sorted({name for name, _ in CASES})


def silos(sizes=SIZES, seed=0, **options):
    """Records of silos; a silo that is longer than another of the same seed begins as it does."""
    parts = []
    for j, n in enumerate(sizes):
        rng = np.random.default_rng((seed, j))
        X = rng.standard_normal((n, 3)) * 10.0 ** rng.uniform(-3, 3, (n, 1))
        parts.append((X, np.where(rng.random(n) < 0.5, "a", "b")))
    return dpk.SiloData.from_silos(parts, **{"row_bound": 2.0, "intercept": True} | options)


def run(name, data, **options):
    options = {
        "budget": BUDGET, "clip": 0.7, "rounds": 3,
        "neighbours": "add_remove", "public_size": PUBLIC,
        # Under central trust its steps are hidden, which has no bound for these neighbours.
        "trust": "silo" if name == "local_sgd" else "central",
    } | options  # fmt: skip
    if name == "ridge":
        del options["rounds"]  # it has one
    elif name == "newton_inference":
        options["rounds"] = max(options["rounds"], 4)
    return dpk.solve(name, data, **options)


# ---------------------------------------------------------------------- sums of any number of rows


def integers(v, grid):
    steps = np.asarray(v) / grid
    assert np.all(steps == np.rint(steps))
    return np.array([int(k) for k in steps.ravel()], dtype=object).reshape(steps.shape)


@pairwise("isa", "layout", "loss")
def test_what_a_record_adds_to_a_sum_does_not_depend_on_where_it_stands(make, layout, loss):
    """Adding a record moves all that come after it: in blocks, vectors, strips and tasks."""
    together = make(n=331, m=1, **layout)
    alone = make(n=331, m=1, **layout)
    alone.offsets, alone.m = np.arange(332), 331
    w, p = np.random.default_rng(1).standard_normal((2, together.d))
    q, step, bound = 2.0**-30, np.array([1.0, 0.25]), np.array([0.5, 2.0])
    for kernel in (
        lambda data: kernels.glm_gradient(data, w, loss=loss, clip=0.5, grid=q),
        lambda data: kernels.line_search(data, w, p, loss=loss, steps=step, bound=bound, grid=q),
    ):
        np.testing.assert_array_equal(
            integers(kernel(together), q)[0], integers(kernel(alone), q).sum(axis=0)
        )
    q2 = hessian_row_grid(331, 0.5, together.d) ** 2
    H = [kernels.glm_hessian(data, w, loss=loss, hess_clip=0.5) for data in (together, alone)]
    np.testing.assert_array_equal(integers(H[0], q2)[0], integers(H[1], q2).sum(axis=0))


@for_each("p", [1, 5, 8, 130, 600, 1200])
@for_each("dtype", [np.float32, np.float64])
def test_nor_does_it_where_rows_are_wide_or_many(make, p, dtype):
    """Rows that fill a core's cache, or are long, go another way through the kernel."""
    n = max(700, (5 << 20) // (4 * p) if p in (5, 130) else 0)
    data = make(n=n, p=p, m=1, dtype=dtype, row_bound=2.0)
    w, q = np.random.default_rng(1).standard_normal(p) / math.sqrt(p), 2.0**-30
    total = integers(kernels.glm_gradient(data, w, clip=0.5, grid=q, n_threads=1), q)[0]
    for first in (0, 1, n // 2, n - 1):
        rows = np.r_[0:first, first + 1 : n]
        parts = [
            kernels.glm_gradient(
                data, w, clip=0.5, grid=q, rows=(part.astype(np.int64), np.array([0, len(part)]))
            )
            for part in (rows, np.array([first]))
        ]
        np.testing.assert_array_equal(integers(sum(parts), q)[0], total)


@pytest.mark.usefixtures("isa")
def test_gradient_sums_beyond_2_52_steps_are_exact_until_they_are_clamped(bare_records):
    rng = np.random.default_rng(0)
    q, n = 2.0**-50, 150
    X = rng.standard_normal((n, 3)) + np.array([3.0, 0.0, -0.02])
    data = bare_records(X, np.ones(n), np.arange(n + 1))
    one = integers(kernels.glm_gradient(data, np.zeros(3), clip=1.0, grid=q, saturate=True), q)
    for k in (3, 5, 6, 100, 150):
        data = bare_records(X[:k], np.ones(k), [0, k])
        how = {"clip": 1.0, "grid": q, "saturate": True}
        total = kernels.glm_gradient(data, np.zeros(3), **how)
        exact = [max(-(2**52), min(2**52, int(t))) for t in one[:k].sum(axis=0)]
        np.testing.assert_array_equal(integers(total, q)[0], exact)
        np.testing.assert_allclose(ref.glm_gradient(data, np.zeros(3), **how), total, atol=1e-12)
    assert abs(exact[0]) == 2**52 > abs(exact[2])
    with pytest.raises(ValueError, match="grid must be at least"):
        kernels.glm_gradient(data, np.zeros(3), clip=1.0, grid=q)
    # A record alone must stay within 2^51 steps, whatever is clamped later.
    with pytest.raises(ValueError, match="grid must be at least"):
        kernels.glm_gradient(data, np.zeros(3), clip=1.0, grid=q / 4, saturate=True)


@pytest.mark.usefixtures("isa")
def test_decreases_of_the_loss_beyond_2_52_steps_are_clamped(bare_records):
    q, n = 2.0**-50, 150
    data = bare_records(np.ones((n, 1)), np.ones(n), [0, n])
    how = {"loss": "logistic", "steps": [-4.0, 4.0, -1e-3], "bound": [1.0, 1.0, 1.0], "grid": q}
    with pytest.raises(ValueError, match="grid must be at least"):
        kernels.line_search(data, [0.0], [1.0], **how)
    sums = kernels.line_search(data, [0.0], [1.0], saturate=True, **how)
    assert integers(sums, q)[0, :2].tolist() == [2**52, -(2**52)]
    assert 0 < integers(sums, q)[0, 2] < 2**52
    np.testing.assert_allclose(
        ref.line_search(data, [0.0], [1.0], saturate=True, **how), sums, rtol=1e-12
    )


@pytest.mark.usefixtures("isa")
@for_each("grid", [False, True])
def test_hessian_sums_of_more_records_than_were_said_are_exact_until_they_are_clamped(make, grid):
    data = make(n=3000, p=5, m=1, seed=3)
    w, B, records = np.zeros(5), 0.7, 8
    q2 = hessian_row_grid(records, B, 5) ** 2
    alone = make(n=3000, p=5, m=1, seed=3)
    alone.offsets, alone.m = np.arange(3001), 3000
    how = {"loss": "squared", "hess_clip": B, "records": records}
    exact = integers(kernels.glm_hessian(alone, w, **how), q2).sum(axis=0)
    step = q2 * 2.0**20 if grid else q2
    H = kernels.glm_hessian(data, w, grid=step if grid else None, **how)[0]
    for got, k in zip(H.ravel(), exact.ravel(), strict=True):
        if grid:
            assert Fraction(float(got) / step) == round(
                Fraction(max(-(2**52), min(2**52, k)), 2**20)
            )
        else:
            assert float(got) / q2 == float(k)
    assert np.max(np.abs(exact)) > 2**53
    np.testing.assert_allclose(
        ref.glm_hessian(data, w, grid=step if grid else None, **how)[0], H, rtol=1e-9
    )
    with pytest.raises(ValueError, match=r"records must be above .* got 1"):
        kernels.glm_hessian(data, w, loss="squared", hess_clip=B, records=1)


def test_adding_a_record_moves_a_clamped_sum_by_no_more_than_its_bound(bare_records):
    """Right where the clamp begins to act, in exact arithmetic, for gradients and Hessians."""
    rng = np.random.default_rng(2)
    q, n = 2.0**-50, 80
    X = 4.0 * (rng.standard_normal((n, 2)) + 2.0)
    q2 = hessian_row_grid(2, 1.0, 2) ** 2
    sums, hessians = [], []
    for k in range(1, n):
        data = bare_records(X[:k], np.ones(k), [0, k])
        g = kernels.glm_gradient(data, np.zeros(2), clip=1.0, grid=q, saturate=True)
        H = kernels.glm_hessian(
            data, np.zeros(2), loss="squared", hess_clip=1.0, records=2, grid=4 * q2
        )
        sums.append(integers(g, q))
        hessians.append(integers(H, 4 * q2))
    for totals, step, bound in ((sums, q, 1), (hessians, 4 * q2, 1 + Fraction(4 * q2) * 2)):
        moved = [np.sum((b - a) ** 2) for a, b in itertools.pairwise(totals)]
        assert max(moved) * Fraction(step) ** 2 <= bound**2
        assert max(moved) * Fraction(step) ** 2 > Fraction(99, 100)
        assert moved[-1] == 0


@for_each("m", [1, 3, 1024, 1500])
def test_the_total_over_silos_is_exact_and_clamped(m):
    rng = np.random.default_rng(m)
    q = 2.0**-40
    steps = rng.integers(-(2**52), 2**52, (m, 4), endpoint=True)
    steps[:, 1], steps[:, 2] = 2**52, -(2**52)
    steps[:, 3] //= m
    total = total_on_grid(steps.astype(float) * q, q)
    most = min(2**52, 2**62 // m)
    exact = [
        max(-(2**52), min(2**52, sum(max(-most, min(most, int(s))) for s in column)))
        for column in steps.T
    ]
    np.testing.assert_array_equal(integers(total, q), exact)


@pairwise(n=[1, 3, 1000, 10**6, 2**31 - 1], clip=[1.0, 0.7, 3e5], sigma=[None, 1.0, 300.0, 1e7])
def test_the_grid_suits_twice_the_public_size_and_any_number_of_records(n, clip, sigma):
    sigma = None if sigma is None else sigma * clip
    how = {"n": n, "clip": clip, "dim": 7, "sigma": sigma}
    q = Fraction(choose_grid(neighbours="add_remove", **how))
    assert 2 * n * Fraction(clip) <= 2**52 * q
    assert 2**31 * Fraction(clip) <= 2**62 * q
    assert q >= Fraction(choose_grid(**how))
    if q > Fraction(choose_grid(**how)):
        assert 2 * n * Fraction(clip) > 2**52 * q / 2 or 2**32 * Fraction(clip) > 2**62 * q


def test_rows_of_hessians_suit_twice_the_public_size_and_any_number_of_records():
    for n in (1, 1000, 2**21, 2**31 - 1):
        assert grid_records(n) >= 2 * n
        assert grid_records(n) << 11 >= 2**31


def test_sensitivities_are_those_of_one_record_more_or_less():
    with NoiseStream(0) as rng:
        how = {"what": "s", "dim": 3, "sizes": (9, 5), "mu": 0.5}
        channels = [Channel(Ledger(), rng, "all", n) for n in ("replace_one", "add_remove")]
        both = [
            (GaussianSum(channel, clip=0.7, **how), GaussianHessian(channel, hess_clip=0.7, **how))
            for channel in channels
        ]
        (_, H2), (S, H) = both
        assert S.sensitivity == 0.7
        assert S.sigma.tolist() == [1.4, 1.4]
        D = Fraction(0.7) + 3 * Fraction(H.grid)
        assert D <= Fraction(H.sensitivity) <= D * (1 + Fraction(1, 2**50))
        assert H.sensitivity / H.sigma == pytest.approx(0.5, rel=1e-12)
        assert (H.records, H2.records) == (grid_records(14), None)
        triangle = GaussianHessian(channels[1], hess_clip=0.7, triangle=True, **how)
        assert triangle.sensitivity == pytest.approx(0.7 + math.sqrt(6) * triangle.grid, rel=1e-12)


@for_each(("name", "options"), CASES)
def test_certificate_is_the_budget_for_a_record_that_is_added_or_removed(name, options):
    certificate = run(name, silos(), rng=1, **options).privacy
    assert certificate.neighbours == "add_remove"
    assert certificate.epsilon(1e-5) <= 1.0
    assert certificate.epsilon(1e-5) == pytest.approx(1.0, rel=1e-6)
    assert certificate.mu == pytest.approx(recomputed_mu(certificate, 3), rel=1e-12)
    assert "neighbours  add_remove" in str(certificate)
    assert any("no silo is empty" in note for note in certificate.notes)
    for release in certificate.releases:
        if release.what == "sum of clipped gradients":
            assert set(np.ravel(release.sensitivity)) == {0.7}
        elif release.what == "sum of clipped Hessians":  # B = 0.25 R^2, and the rounding
            assert np.all(np.ravel(release.sensitivity) <= 1.0 + 4.001 * np.ravel(release.grid))
        elif release.what.startswith("trace"):
            B = certificate.declared["hess_clip"]
            assert B <= release.sensitivity <= 1.001 * B
        elif release.what.startswith("decreases"):
            assert np.ravel(release.sensitivity)[0] == pytest.approx(math.sqrt(4 / 3), rel=1e-4)


def test_the_certificate_of_split_data_says_that_neighbours_are_not_split_afresh(spied):
    """A split of one record more deals all of them anew: silos' sums move by more than C."""
    X = np.random.default_rng(0).standard_normal((300, 3))
    y, sums = np.where(X[:, 0] + X[:, 1] > 0.0, "a", "b"), []
    for n in (300, 299):
        spied.clear()
        data = dpk.SiloData.split(X[:n], y[:n], 3, seed=0)
        how = {"trust": "silo", "clip": 0.5, "step_size": 0.1, "rounds": 1, "rng": 1}
        result = run("gradient_descent", data, **how)
        sums.append(spied[0][2])
        assert any("splitting one record more afresh ('even')" in n for n in result.privacy.notes)
    moved = [square(a, b) for a, b in zip(*sums, strict=True)]
    assert max(moved) > Fraction(0.5) ** 2
    for given in (silos(), dpk.SiloData.from_groups(X, y, np.arange(300) % 3)):
        assert not any(
            "afresh" in n for n in run("federated_gd", given, step_size=0.1).privacy.notes
        )


@for_each("name", ABLE)
def test_noise_is_less_than_for_a_record_that_is_replaced(name):
    """Half on gradients, and by the root of two on Hessians; the same on directions of "add"."""
    options = {"budget": dpk.Budget(mu=0.5), "rng": 1, "rounds": 1}
    data = silos()
    more = run(name, data, neighbours="replace_one", public_size=None, **options).privacy
    less = run(name, data, public_size=SIZES, **options).privacy
    assert less.mu == pytest.approx(more.mu, rel=1e-9)
    for a, b in zip(more.releases, less.releases, strict=True):
        ratio = np.max(a.std) / np.max(b.std)
        if a.what == "sum of clipped gradients":
            assert ratio == 2.0
        elif a.what == "sum of clipped Hessians":
            assert ratio == pytest.approx(math.sqrt(2.0), rel=0.01)
        elif a.what.startswith("trace"):
            assert ratio == pytest.approx(1.0, rel=1e-3)


@for_each("compose", [compose_sequential, compose_parallel])
def test_certificates_about_different_neighbours_are_not_combined(compose):
    one = run("gradient_descent", silos(), rng=1).privacy
    other = run("gradient_descent", silos(), neighbours="replace_one", public_size=None).privacy
    with pytest.raises(ValueError, match="neighbours must be one for all"):
        compose(one, other)
    assert compose(one, one).neighbours == "add_remove"


# ------------------------------------------------------------- true sizes reach nothing


@pytest.fixture
def deaf(monkeypatch):
    """Mechanisms release the same bits whatever the records are; returns what they were made of,
    and what the kernels chose steps of rows by."""
    made, row_grid = [], hessian_row_grid

    def chosen(*public):
        made.append(public)
        return row_grid(*public)

    for module in (
        "kernels.hessian",
        "privacy.mechanisms.hessian",
        "privacy.sensitivity.grids",
        "solvers.releases.newton_direction",
    ):
        monkeypatch.setattr(f"dpkern.{module}.hessian_row_grid", chosen)

    def deafen(kind, answer):
        release = kind.release

        def same(mechanism, total, **known):
            released = release(mechanism, total, **known)
            scale = getattr(mechanism, "sigma", None), getattr(mechanism, "grid", None)
            made.append((kind.__name__, total.shape, released.shape, known, scale))
            return answer(released)

        monkeypatch.setattr(kind, "release", same)

    deafen(GaussianSum, lambda r: np.linspace(-1.0, 1.0, r.size).reshape(r.shape))
    deafen(GaussianHessian, lambda r: np.broadcast_to(np.diag([9.0, 1.0, 5.0, 3.0]), r.shape) * 1.0)
    deafen(GaussianMessages, lambda r: np.linspace(2.0, 1.0, r.size).reshape(r.shape))
    return made


@pytest.mark.parametrize(("name", "options"), CASES)
def test_equal_releases_of_data_of_other_sizes_give_equal_results(deaf, name, options):
    """One record more, or silos far from their public sizes: grids, notes, texts are the same."""
    outcomes = []
    for sizes in (SIZES, (7, 41, 41), (1, 40, 500)):
        deaf.clear()
        result = run(name, silos(sizes), rng=5, callback=lambda *told: deaf.append(told), **options)
        outcomes.append((transcript(result), str(deaf)))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    declared = result.privacy.declared
    public = options.get("public_size", PUBLIC)
    assert declared["sizes"] == public
    assert result.parameters["public_size"] in (public, list(PUBLIC))


@pytest.mark.filterwarnings("ignore::dpkern.privacy.BudgetWarning")
@for_each(("name", "options"), CASES)
def test_a_public_size_far_too_small_is_not_refused_which_would_say_so(name, options):
    """100 000 records where one was announced, and grids so fine that sums leave 2^52 steps."""
    data = silos((50_000, 3, 50_000))
    size = 1 if isinstance(options.get("public_size"), int) else (1, 1, 1)
    for mu in (0.5, 1e5, 1e8):
        how = options | {"public_size": size, "budget": dpk.Budget(mu=mu)}
        result = run(name, data, rounds=2, **how)
        assert np.all(np.isfinite(result.w))
        assert result.privacy.mu == pytest.approx(mu, rel=1e-9)


@pytest.mark.filterwarnings("ignore::dpkern.privacy.BudgetWarning")
@for_each("trust", ["central", "silo"])
def test_sums_of_millions_of_records_that_were_not_announced_are_clamped(spied, trust):
    """The noise is so small here that grids are the finest that integers allow."""
    n = 1 << 22
    offsets = [0, n // 2 + n // 8, n]
    data = dpk.SiloData(np.ones((n, 1), np.float32), np.ones(n), offsets, classes=[-1, 1])
    for name, more in (
        ("gradient_descent", {"step_size": 1.0}),
        ("local_newton", {"step_size": "private_search", "hess_clip": 0.25, "max_step": 1.7}),
    ):
        spied.clear()
        how = {"trust": trust, "public_size": (1, 1), "clip": 0.5, "budget": dpk.Budget(mu=1e8)}
        result = run(name, data, rounds=1, **how, **more)
        assert np.all(np.isfinite(result.w))
        for *_, released in spied:
            assert np.all(np.isfinite(released))
        # Derivatives are 1/2 and the clip is 1/2: n/2 but for the clamp at 2^52 steps.
        (q,) = set(np.ravel(result.privacy.releases[0].grid))
        assert 0.49 * n * (1.0 if trust == "central" else 0.625) > 2**52 * q
        assert np.ravel(spied[0][2])[0] == pytest.approx(-(2**52) * q, rel=1e-6)


@pytest.mark.filterwarnings("ignore::dpkern.privacy.BudgetWarning")
@for_each("name", ABLE)
def test_errors_are_the_same_for_data_of_other_sizes(name):
    for options in (
        {"public_size": (3, 4)},
        {"budget": dpk.Budget(mu=1e-12)},
        {"clip": 1e-200},
        {"clip": 1e290},
        {"public_size": (2**31 - 1,) * 3, "budget": dpk.Budget(mu=1e4)},
    ):
        messages = set()
        for sizes in (SIZES, (7, 41, 41), (3, 400, 1)):
            try:
                run(name, silos(sizes), rng=5, **options)
            except (ValueError, TypeError) as error:
                messages.add(str(error))
            else:
                messages.add("")
        assert len(messages) == 1


# ---------------------------------------------------------------------------------- neighbours


@for_each(("name", "options"), [c for c in CASES if c[0] != "double_noise_newton"])
def test_neighbours_with_equal_noise_release_bits_within_the_ledgers_sensitivity(
    spied, name, options
):
    """In rational arithmetic: the first round's sums of data with one record less."""
    data, largest = silos(intercept=False), {}
    per_silo = options.get("trust") == "silo"
    for j, i in enumerate((0, 10, 80)):
        sums = []
        X, y = data.X.copy(), np.where(data.y > 0.0, "b", "a")
        X[i], y[i] = (50.0, 0.0, 0.0), "b"
        left = np.arange(data.n) != i
        offsets = data.offsets - (data.offsets > i)
        for rows, bounds in ((slice(None), data.offsets), (left, offsets)):
            spied.clear()
            neighbour = dpk.SiloData(X[rows].copy(), y[rows], bounds, row_bound=2.0)
            run(name, neighbour, rounds=1, rng=j, **options)
            # Rows in the noise's own geometry are far shorter than their bound.
            sums.append(list(spied[: 1 if name == "newton_inference" else 2]))
        for k, ((mechanism, _, a), (*_, b)) in enumerate(zip(*sums, strict=True)):
            a, b = (v.reshape(len(SIZES) if per_silo else 1, -1) for v in (a, b))
            for silo, (one, other) in enumerate(zip(a, b, strict=True)):
                moved = square(one, other)
                bound = mechanism.sensitivity
                assert moved <= Fraction(bound) ** 2
                assert moved == 0 or not per_silo or silo == j
                largest[k] = max(largest.get(k, 0), moved / Fraction(bound) ** 2)
    assert all(reached > Fraction(20, 100) for reached in largest.values())


def of(M, f):
    """f on the eigenvalues of a symmetric matrix, times a vector, in 60 digits."""
    values, vectors = mpmath.eigsy(mpmath.matrix(M.tolist()))
    return lambda g: (
        vectors * (mpmath.diag([f(v) for v in values]) * (vectors.T * mpmath.matrix(g.tolist())))
    )


@for_each("variant", ["add", "clip"])
@for_each("d", [1, 2, 6])
def test_adding_a_record_moves_the_direction_by_no_more_than_is_charged(variant, d):
    """D_p = |g| b / (l0 (l0 + b)), reached where the rest is l0 I; |g| b / l0^2 for "clip"."""
    rng = np.random.default_rng(d)
    n, B, l0 = 7, 0.25, 0.2
    b, reached = B / n, 0.0
    f = (lambda x: 1 / (x + l0)) if variant == "add" else (lambda x: 1 / max(x, mpmath.mpf(l0)))
    factor = b / (l0 * (l0 + b)) if variant == "add" else b / l0**2
    with mpmath.workdps(60):
        for trial in range(40):
            rows = rng.normal(size=(n, d)) * rng.choice([0.0, 1e-3, 0.1], size=(n, 1))
            rows *= trial % 4 > 0
            more = rng.normal(size=d)
            more *= math.sqrt(B) / np.linalg.norm(more)
            g = more if trial % 2 else rng.normal(size=d)
            A = rows.T @ rows / n
            if variant == "clip" and trial % 8 == 1:
                A = l0 * np.eye(d)
            moved = of(A, f)(g) - of(A + np.outer(more, more) / n, f)(g)
            reached = max(reached, float(mpmath.norm(moved) / (factor * np.linalg.norm(g))))
    assert reached <= 1.0 + 1e-12
    assert reached > (0.99 if variant == "add" else 0.8)


@for_each("variant", ["add", "clip"])
@for_each("public", [(10, 32, 64), (1, 1, 1)])
def test_the_direction_is_charged_by_public_numbers_and_releases(monkeypatch, variant, public):
    calls = spy_on_calls(monkeypatch, GaussianMessages, "release")
    how = {"variant": variant, "public_size": public, "hess_clip": None}
    result = run("double_noise_newton", silos(), rng=3, **how)
    b = 1.0 / sum(public)
    std = result.privacy.releases[0].std
    per_margin = 2.0 / 9.0  # of row bound 2 and 4 coordinates
    least = per_margin * std * b / settings._NEWTON_SHARE
    least *= 1.0 + settings._NOISY_STEPS * 4 * (std * b / 0.7) ** 2  # of 4 coordinates
    for t in range(3):
        trace, known = calls[2 * t].result, calls[2 * t + 1].how
        direction = result.privacy.releases[2 + t]
        mu = direction.sensitivity / direction.std
        norm = result.history["gradient_norm"][t]
        noisy = (per_margin * norm * b / mu / settings._DIRECTION_SHARE) ** 0.5
        l0 = max((32 * b**2 * max(trace[0], 0) * b / mu**2) ** (1 / 3), 4 * b, least, noisy)
        factor = b / (l0 * (l0 + b)) if variant == "add" else b / l0**2
        assert known["sensitivity"][0] == pytest.approx(norm * factor, rel=1e-6)


@for_each(
    ("name", "options"),
    [
        ("minibatch_sgd", {"trust": "silo"}),
        ("minibatch_sgd", {"trust": "central"}),
        ("minibatch_sgd", {"trust": "silo", "sampling": "poisson", "batch_size": 2}),
        ("minibatch_sgd", {"trust": "central", "sampling": "poisson", "batch_size": 2}),
        ("local_sgd", {"local_steps": 2, "noise": "step", "trust": "silo"}),
    ],
)
def test_a_perceptron_runs_with_any_number_of_records_and_certifies_the_same(name, options):
    """With 32 times the public number, which sums in doubles hold, and one record more, too."""
    certificates = []
    for n in (9, 319, 320, 321, 2000):
        data = silos((n,), intercept=False)
        how = {"model": dpk.MLP(hidden=(4,)), "public_size": (10,), "step_size": 0.1, "rng": 3}
        privacy = run(name, data, **how, **options).privacy
        # The model is released with noise, and so may be its digest.
        certificates.append(replace(privacy, model=None, started=None).to_dict())
    assert all(certificate == certificates[0] for certificate in certificates)


# ------------------------------------------------------------------------------------ noiseless


@for_each(("name", "options"), [c for c in CASES if "public_size" not in c[1]])
def test_without_noise_public_sizes_that_are_true_change_nothing(name, options):
    data = silos()
    how = {"budget": None, "clip": 0.7, "hess_clip": 0.5, "rounds": 5, **options}
    second_order = "hess_clip" in SOLVERS[name].declaration.own
    if not second_order:
        del how["hess_clip"]
    expected = run(name, data, **how | {"neighbours": "replace_one", "public_size": None})
    result = run(name, data, **how | {"public_size": SIZES})
    # Rows of Hessians are rounded for more records than there are.
    np.testing.assert_allclose(result.w, expected.w, atol=1e-4 if second_order else 1e-9)
    assert not any("no silo is empty" in note for note in result.privacy.notes)


def test_public_sizes_are_the_weights_and_denominators():
    """One step of size 1 from 0: sum_j p_j S_j / n_j with the public p_j and n_j."""
    data = silos()
    S = kernels.glm_gradient(data, np.zeros(data.d), clip=0.7)
    P = np.array(PUBLIC)
    expected = {"size": S.sum(axis=0) / P.sum(), "uniform": (S / P[:, None]).mean(axis=0)}
    for weights, mean in expected.items():
        for trust in ("central", "silo"):
            how = {"weights": weights, "trust": trust, "step_size": 1.0, "rounds": 1}
            w = run("gradient_descent", data, budget=None, **how).w
            np.testing.assert_allclose(w, -mean, atol=1e-9)


def test_every_solver_that_offers_these_neighbours_is_tried_here():
    offered = {name for name, s in SOLVERS.items() if "add_remove" in s.declaration.neighbours}
    assert {*ABLE, "objective_perturbation"} == offered  # which has a file of its own


@for_each(
    ("options", "message"),
    [
        ({"public_size": None}, "public_size must be given with neighbours='add_remove'"),
        ({"neighbours": "replace_one"}, "public_size must be given with"),
        ({"neighbours": "edit"}, "neighbours must be 'replace_one' or 'add_remove'"),
        ({"public_size": (1, 2)}, "public_size must have 3 entries, one per silo, got 2"),
        ({"public_size": (1, 2, 0)}, "public_size must be at least 1, got 0"),
        ({"public_size": (1, 2, 2**31)}, r"must be below 2\^31"),
        ({"public_size": 2.5}, "TypeError: public_size must be an integer, got 2.5"),
        ({"public_size": "100"}, "TypeError: public_size must be an integer, got '100'"),
        ({"public_size": (10, True, 3)}, "TypeError: public_size must be an integer, got True"),
        ({"public_size": 100, "weights": "uniform"}, "each of the 3 silos"),
    ],
)
def test_a_public_size_that_does_not_fit_is_refused_before_any_release(options, message):
    for name in ABLE:
        assert_refused(message, run, name, silos(), **options)


@for_each(
    ("name", "options", "message"),
    [
        ("gradient_descent", {"trust": "silo", "public_size": 100}, "each of the 3 silos"),
        ("local_newton", {"trust": "silo", "public_size": 100}, "each of the 3 silos"),
        ("gradient_descent", {"calibration": "paper"}, "neighbours='add_remove' needs calibration"),
        ("federated_gd", {"calibration": "paper"}, "neighbours='add_remove' needs calibration"),
        (
            "local_newton",
            {"trust": "silo", "calibration": "paper"},
            "neighbours='add_remove' needs calibration",
        ),
        ("federated_gd", {"local_steps": 2}, "neighbours='add_remove' needs local_steps=1"),
        (
            "federated_gd",
            {"trust": "silo", "accounting": "last_iterate", "step_size": 0.1, "l2": 0.1},
            "neighbours='add_remove' needs local_steps=1 and accounting",
        ),
    ],
)
def test_what_has_no_proof_for_added_records_is_refused(name, options, message):
    assert_refused(message, run, name, silos(), **options)


def test_a_custom_loss_is_refused_as_its_bits_may_depend_on_a_records_place():
    numba = pytest.importorskip("numba")
    from scipy import LowLevelCallable

    double = numba.types.CPointer(numba.types.float64)

    @numba.cfunc(numba.void(numba.types.intp, *[double] * 5, numba.types.voidptr))
    def function(n, y, z, value, d1, d2, params):
        pass

    loss = dpk.losses.Custom(
        LowLevelCallable(function.ctypes), smoothness=1.0, lipschitz=1.0, task="regression"
    )
    with pytest.raises(ValueError, match="needs a loss of the table"):
        run("gradient_descent", silos(), loss=loss)


def test_a_monitor_of_public_records_counts_its_own(monkeypatch):
    monitor = silos((30, 30), seed=9)
    result = run("gradient_descent", silos(), budget=None, monitor=monitor)
    value = dpk.solvers.Objective(monitor, dpk.losses.Logistic())
    assert result.history["objective"][-1] == pytest.approx(value.value(result.w), rel=1e-12)


def test_more_records_than_integers_hold_are_refused(monkeypatch):
    monkeypatch.setattr(sys.modules["dpkern.solvers.base.plan"], "MAX_RECORDS", 88)
    with pytest.raises(ValueError, match="neighbours='add_remove' needs fewer"):
        run("gradient_descent", silos())
