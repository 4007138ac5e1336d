"""local_newton: limits, releases and certificate, what may choose a step, clear errors."""

import ctypes
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy
from cases import for_each
from makers import BUDGET, assert_refused, make_silos

import dpkern as dpk
from dpkern import kernels, reference
from dpkern.models.losses import LOSSES
from dpkern.papers.line_search import PaperSearch
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.privacy.mechanisms.hessian import GaussianHessian
from dpkern.solvers import Objective

SIZES = (30, 60, 150)
CONVEX = [make() for make in LOSSES.values() if make().convex]
SMOOTH = [loss for loss in CONVEX if loss.name in ("logistic", "squared")]


def make_data(task="classification", seed=0, sizes=SIZES, **options):
    options = {"row_bound": 2.0, "intercept": True} | options
    return make_silos(sizes, 4, task, seed=seed, **options)


@pytest.fixture(scope="module")
def data():
    return make_data()


def run(data, **options):
    shared = {"budget": dpk.Budget(mu=1.0), "clip": 0.7, "trust": "silo"}
    options = shared | {"rounds": 3, "l2": 0.05} | options
    return dpk.solve("local_newton", data, **options)


def free(data, **options):
    return run(data, **({"budget": None, "clip": None} | options))


@for_each("loss", SMOOTH, ids=repr)
@for_each("local_steps", [1, 3])
@for_each("step_size", ["damped", "private_search", "paper_search", 0.5])
def test_silos_with_the_same_records_reach_the_common_optimum(loss, local_steps, step_size):
    data = make_data(loss.task)
    alike = dpk.SiloData.from_silos(
        [(data.X, data.y)] * 3, row_bound=2.0, intercept=True, task=data.task
    )
    calibration = "paper" if step_size == "paper_search" else "sound"
    result = free(
        alike, loss=loss, local_steps=local_steps, rounds=40, step_size=step_size,
        calibration=calibration,
    )  # fmt: skip
    of_all = result.parameters["penalize_intercept"]
    w, _ = Objective(alike, loss, l2=0.05, penalize_intercept=of_all).minimum()
    np.testing.assert_allclose(result.w, w, atol=1e-5)


def test_newton_steps_of_the_squared_loss_are_exact():
    """One full step ends at the ridge solution."""
    data = make_data("regression", intercept=False)
    result = free(data, loss="squared", trust="central", rounds=1, step_size=1.0, floor=1e-12)
    r = np.minimum(1.0, 2.0 / np.linalg.norm(data.X, axis=1))[:, np.newaxis]
    X = np.asarray(data.X) * r
    w = np.linalg.solve(X.T @ X / len(X) + 0.05 * np.eye(4), X.T @ data.y / len(X))
    np.testing.assert_allclose(result.w, w, rtol=1e-9)


def test_unlike_silos_stop_where_their_directions_cancel_and_not_at_the_optimum(data):
    """The limit that the documentation states: sum_k p_k H_k^-1 g_k = 0, not sum_k p_k g_k = 0."""
    result = free(data, rounds=60, step_size=0.5)
    w, mask = result.w, 0.05
    g = kernels.glm_gradient(data, w, clip=math.inf) / data.sizes[:, None] + mask * w
    H = kernels.glm_hessian(data, w, loss="logistic", hess_clip=math.inf)
    H = H / data.sizes[:, None, None] + mask * np.eye(5)
    p = np.linalg.solve(H, g[..., np.newaxis])[..., 0]
    assert np.linalg.norm(data.weights() @ p) < 1e-8
    assert np.linalg.norm(data.weights() @ g) > 1e-4
    assert not result.converged


STEPS = ["damped", "private_search", 0.3, [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]]


REFUSED = ("central", "private_search", "uniform")
ALLOWED = [
    case
    for case in itertools.product(["silo", "central"], STEPS, ["size", "uniform"])
    if case != REFUSED
]


@for_each(("trust", "step_size", "weights"), ALLOWED, ids=str)
def test_the_model_is_the_papers_algorithm_on_the_releases_alone(
    data, spied, trust, step_size, weights
):
    """Recomputed from the released sums and public numbers, eigenvalues included."""
    silo, L = trust == "silo", 2 if trust == "silo" else 1
    how = {"rounds": 6 // L, "local_steps": L, "weights": weights, "penalize_intercept": False}
    result = run(data, trust=trust, step_size=step_size, max_step=0.75, **how)
    share = {"size": data.sizes / data.n, "uniform": np.full(3, 1 / 3)}[weights] if silo else [1.0]
    scale = (
        1 / data.sizes
        if silo
        else np.array([1 / data.n if weights == "size" else 1 / (3 * data.sizes.min())])
    )
    mask = 0.05 * np.array([1.0, 1, 1, 1, 0])
    sigma = next(m.sigma for m, *_ in spied if isinstance(m, GaussianHessian))
    floors = np.maximum(0.05, 0.25 * math.sqrt(2.0) * sigma * scale * math.sqrt(2 * 5))
    s_g = next(m.sigma for m, *_ in spied if isinstance(m, GaussianSum)) * scale
    floors = np.maximum(floors, 2.0 * np.linalg.norm(share * s_g) / (9.0 / 3.0))  # row_bound 2
    candidates = 0.75 * 0.5 ** np.arange(8)
    released = iter([out for _, _, out in spied])
    w, walked, seen = np.zeros(5), [], []
    for r in range(6 // L):
        W, total = np.tile(w, (len(share), 1)), 0.0
        for t in range(r * L, r * L + L):
            g = next(released).reshape(-1, 5) * scale[:, None] + mask * W
            seen.append(next(released) * scale[:, None, None])
            H = np.average(seen, axis=0, weights=np.arange(1.0, t + 2.0)) + np.diag(mask)
            v = next(released).reshape(-1, 8) if step_size == "private_search" else None
            for j in range(len(share)):
                lam, V = np.linalg.eigh(H[j])
                p = V @ ((V.T @ g[j]) / np.maximum(lam, floors[j]))
                if step_size == "damped":
                    a = min(0.75, 1 / (1 + math.sqrt(g[j] @ p)))
                elif v is None:
                    a = np.broadcast_to(step_size, 6)[t]
                else:
                    unit = 2.0 ** math.ceil(math.log2(0.7 * np.linalg.norm(p)))
                    moved = [np.sum(mask * (W[j] ** 2 - (W[j] - b * p) ** 2)) for b in candidates]
                    n_weight = scale[j]
                    a = candidates[np.argmax(v[j] * unit * n_weight + 0.5 * np.array(moved))]
                W[j] -= a * p
                total += share[j] * a
        w = np.asarray(share) @ W
        walked.append(total)
    assert next(released, None) is None
    np.testing.assert_allclose(result.w, w, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(result.history["step_size"], walked, rtol=1e-9)


@for_each("trust", ["silo", "central"])
@for_each(("step_size", "families"), [("damped", 2), (0.5, 2), ("private_search", 3)])
@for_each("steps", [(1, 1), (7, 1), (3, 4)])
def test_certificate_is_the_budget_split_by_shares_and_never_above_it(
    data, trust, step_size, families, steps
):
    rounds, L = steps
    if trust == "central" and L > 1:
        rounds, L = 12, 1
    certificate = run(
        data, budget=BUDGET, rounds=rounds, local_steps=L, trust=trust, step_size=step_size
    ).privacy
    assert certificate.epsilon(1e-5) <= 1.0
    assert len(certificate.releases) == families
    parts = (0.8, 0.2) if families == 2 else (8 / 15, 2 / 15, 1 / 3)
    for release, part in zip(certificate.releases, parts, strict=True):
        share = part * BUDGET.mu**2 / (rounds * L)
        assert release.times == rounds * L
        assert release.n_messages == (3 if trust == "silo" else None)
        D, s = np.atleast_1d(release.sensitivity)[0], np.atleast_1d(release.std)[0]
        assert (D / s) ** 2 == pytest.approx(share, rel=1e-12)
    assert certificate.bound == ("upper" if L > 1 else "exact")
    assert certificate.trust == trust


def test_gradient_and_hessian_carry_their_sensitivities(data):
    gradient, hessian = run(data, trust="central", hess_clip=0.3).privacy.releases
    assert gradient.sensitivity == 2 * 0.7
    assert hessian.sensitivity >= 0.3 + hessian.grid * 5  # beside the gradients
    assert hessian.sensitivity <= 0.3 * 1.001


def test_hess_clip_none_is_the_largest_curvature_times_the_row_bound(data):
    for loss, most in (("logistic", 0.25), ("squared_hinge", 1.0)):
        parameters = run(data, loss=loss, hess_clip=None).parameters
        assert parameters["hess_clip"] == pytest.approx(most * 4.0, rel=1e-9)
        assert parameters["hess_clip"] >= most * 4.0
    assert run(data, hess_clip=0.3).privacy.declared["hess_clip"] == 0.3
    assert free(data).parameters["hess_clip"] == math.inf


@for_each("weights", ["size", "uniform"])
def test_central_sums_before_noise_have_silo_weights_on_records_and_one_grid(data, spied, weights):
    run(data, trust="central", rounds=1, weights=weights, hess_clip=0.3)
    (gradient, g, _), (hessian, H, _) = spied
    ratio = 30 / np.array(SIZES) if weights == "uniform" else None
    how = {"loss": "logistic", "silo_weight": ratio}
    sums = kernels.glm_gradient(data, np.zeros(5), clip=0.7, grid=gradient.grid[0], **how)
    np.testing.assert_array_equal(g.ravel(), sums.sum(axis=0))
    sums = kernels.glm_hessian(data, np.zeros(5), hess_clip=0.3, grid=hessian.grid, **how)
    np.testing.assert_array_equal(H[0], sums.sum(axis=0))


def test_central_noise_on_the_means_is_a_silos_share_of_silo_noise(data, spied):
    run(data, trust="central", rounds=1, hess_clip=0.3)
    run(data, trust="silo", rounds=1, hess_clip=0.3)
    (g, *_), (H, *_), (g_silo, *_), (H_silo, *_) = spied
    assert g.sigma[0] == g_silo.sigma[0]
    assert H.sigma == pytest.approx(H_silo.sigma, rel=1e-3)
    assert len(g_silo.sigma) == 3


def test_no_two_releases_share_their_noise(data, spied):
    run(data, rounds=3, local_steps=2, step_size="private_search", rng=0)
    noise = []
    for mechanism, total, released in spied:
        moved = released - total
        if isinstance(mechanism, GaussianHessian):
            moved = moved[:, *np.triu_indices(5)]
        noise.append(moved.ravel() / np.max(mechanism.sigma))
    noise = np.concatenate(noise)
    assert np.unique(noise).size == noise.size


def test_floor_is_from_the_noise_of_hessians_or_gradients_or_the_penalty_or_given(data):
    gradient, hessian = run(data, l2=0.0, hess_clip=None).privacy.releases
    floor = run(data, l2=0.0, hess_clip=None).parameters["floor"]
    alone = math.sqrt(2.0) * hessian.std[0]  # what Hessians would need without the gradients
    np.testing.assert_allclose(floor, 0.25 * alone / data.sizes * math.sqrt(2 * 5))
    floor = run(data, l2=0.0, hess_clip=1e-3).parameters["floor"]
    s_g = np.linalg.norm(gradient.std) / data.n  # a silo's mean has the weight n_j / n
    assert floor == pytest.approx(data.row_bound * s_g / (9.0 / 3.0))
    assert run(data, l2=1e4).parameters["floor"] == 1e4
    assert run(data, floor=0.125).parameters["floor"] == 0.125
    assert free(data, l2=0.25).parameters["floor"] == 0.25
    assert free(data, l2=0.0).parameters["floor"] == 1e-8


def test_paper_calibration_takes_the_last_hessian_alone(data, spied):
    result = run(data, calibration="paper", rounds=2, step_size=1.0, l2=0.0)
    assert result.parameters["hess_clip"] >= 0.25 * data.row_bound**2
    released = iter([out for _, _, out in spied])
    w, floors = np.zeros((3, 5)), np.broadcast_to(result.parameters["floor"], 3)
    for _ in range(2):
        for j, (S, U) in enumerate(zip(next(released), next(released), strict=True)):
            lam, V = np.linalg.eigh(U / data.sizes[j])
            w[j] -= V @ ((V.T @ S / data.sizes[j]) / np.maximum(lam, floors[j]))
        w[:] = data.sizes / data.n @ w
    np.testing.assert_allclose(result.w, w[0], rtol=1e-9)


# ----------------------------------------------------------------------------- private search


@for_each("trust", ["silo", "central"])
@for_each("i", [3, 200])
def test_searches_of_neighbours_move_within_the_ledgers_sensitivity(monkeypatch, spied, trust, i):
    """With equal releases before: records that gain and lose as much as the clamp allows."""
    fixed = np.random.default_rng(4).standard_normal((3, 5))
    release, identity = GaussianSum.release, np.tile(np.eye(5), (3, 1, 1))

    def gradient_fixed(mechanism, total):
        released = release(mechanism, total)
        if mechanism._dim == 5:
            released = fixed.copy() if total.ndim == 2 else fixed[0].copy()
        return released

    monkeypatch.setattr(GaussianSum, "release", gradient_fixed)
    monkeypatch.setattr(
        GaussianHessian, "release", lambda mechanism, total: identity[: len(total)].copy()
    )
    data, sums = make_data(intercept=False, row_bound=None), []
    data = dpk.SiloData(np.hstack([data.X, data.X[:, :1]]), data.y, data.offsets)
    for sign in (1.0, -1.0):
        X, y = data.X.copy(), data.y.copy()
        X[i], y[i] = 1e4 * fixed[np.searchsorted(np.cumsum(SIZES), i, "right")], sign
        if trust == "central":
            X[i] = 1e4 * fixed[0]
        neighbour = dpk.SiloData(X, y, data.offsets)
        spied.clear()
        result = run(
            neighbour, rounds=1, trust=trust, step_size="private_search", hess_clip=1.0, floor=1.0
        )
        (total,) = [total for mechanism, total, _ in spied if mechanism._dim == 8]
        sums.append(np.atleast_2d(total))
    bound = Fraction(np.atleast_1d(result.privacy.releases[-1].sensitivity)[0])
    moved = [
        sum((Fraction(float(a)) - Fraction(float(b))) ** 2 for a, b in zip(*rows, strict=True))
        for rows in zip(*sums, strict=True)
    ]
    assert max(moved) <= bound**2
    assert max(moved) > bound**2 * Fraction(99, 100)
    assert sum(square > 0 for square in moved) == 1


def test_private_search_without_noise_takes_the_candidate_of_the_largest_decrease(data):
    result = free(data, trust="central", rounds=1, step_size="private_search", max_step=4.0)
    objective = Objective(data, dpk.losses.Logistic(), l2=0.05)
    alpha = result.history["step_size"][0]
    p = -result.w / alpha
    values = [objective.value(-a * p) for a in 4.0 * 0.5 ** np.arange(8)]
    assert objective.value(result.w) == pytest.approx(min(values), rel=1e-12)
    assert alpha < 4.0


# --------------------------------------------------------------------------------- paper mode


def test_paper_noise_is_sound_for_rank_one_hessians_with_room_to_spare(data):
    certificate = run(data, calibration="paper", rounds=5, local_steps=2, hess_clip=0.3).privacy
    gradient, hessian = certificate.releases
    root = math.sqrt(2 * 10)
    assert gradient.std == pytest.approx((2 * 0.7 * root,) * 3)
    assert hessian.std == pytest.approx((2 * 0.3 * root,) * 3)
    assert certificate.claimed == {"mu": 1.0}
    assert certificate.mu == pytest.approx(math.sqrt(0.75), rel=1e-3)


def test_the_papers_search_certifies_nothing(data):
    certificate = run(data, calibration="paper", step_size="paper_search").privacy
    assert certificate.claimed == {"mu": 1.0}
    assert certificate.mu == math.inf
    assert certificate.epsilon(0.5) == math.inf
    assert any("no guarantee" in note for note in certificate.notes)
    assert any("Equation (10)" in release.what for release in certificate.releases)


def test_the_papers_search_leaks_neighbours_with_equal_releases_take_different_steps(monkeypatch):
    """A draw that both can produce: the same released gradient and Hessian, another step.

    The step is then an event of positive probability under one data set and of probability 0 under
    the other, given the releases: no finite mu allows that.
    """
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((12, 2)), np.where(rng.random(12) < 0.5, 1.0, -1.0)
    replaced = np.vstack([[3.0, 0.0], X[1:]])
    first, second = (dpk.SiloData(rows, y, [0, 12], row_bound=3.0) for rows in (X, replaced))
    how = {"clip": 3.0, "rounds": 1, "calibration": "paper", "floor": 0.1, "l2": 0.01}
    how |= {"step_size": "paper_search", "max_step": 4.0}
    real = {kind: kind.release for kind in (GaussianSum, GaussianHessian)}
    releases, steps = {}, {}

    def kept(mechanism, total):
        releases[type(mechanism)] = real[type(mechanism)](mechanism, total)
        return releases[type(mechanism)].copy()

    def repeated(mechanism, total):
        """The noise that makes the first one's release of this sum: it is on the same grid."""
        noise = releases[type(mechanism)] - total
        assert np.all(np.abs(noise) < 8.0 * np.max(mechanism.sigma))
        assert np.all(noise % np.max(mechanism.grid) == 0.0)
        return releases[type(mechanism)].copy()

    for seed in range(40):
        for data, release in ((first, kept), (second, repeated)):
            for kind in real:
                monkeypatch.setattr(kind, "release", release)
            result = run(data, rng=seed, **how)
            steps.setdefault(seed, []).append((result.history["step_size"], result.w.tolist()))
    different = [seed for seed, (one, other) in steps.items() if one != other]
    assert different
    # With a step that is a function of the releases the same draws give the same model.
    how |= {"step_size": "damped"}
    for data, release in ((first, kept), (second, repeated)):
        for kind in real:
            monkeypatch.setattr(kind, "release", release)
        steps.setdefault("damped", []).append(run(data, rng=different[0], **how).w.tolist())
    assert steps["damped"][0] == steps["damped"][1]


def test_the_papers_search_takes_the_largest_step_of_equation_10_on_the_silos_own_numbers(data):
    own = dpk.SiloData(data.X[:90], data.y[:90], [0, 90], row_bound=2.0, intercept=True)
    objective = Objective(own, dpk.losses.Logistic(), l2=0.05)
    g = kernels.glm_gradient(own, np.zeros(5), clip=math.inf)[0] / 90
    H = kernels.glm_hessian(own, np.zeros(5), loss="logistic", hess_clip=math.inf)[0] / 90
    H = H + 0.05 * np.eye(5)
    start = objective.value(np.zeros(5))
    found = []
    for max_step in np.geomspace(32.0, 64.0, 30):
        result = free(
            own, calibration="paper", step_size="paper_search", max_step=max_step, rounds=1,
            floor=0.2,
        )  # fmt: skip
        (alpha,) = result.history["step_size"]
        p = -result.w / alpha
        exact = p - np.linalg.solve(H, g)  # the paper's N tilde
        holds = [
            objective.value(-a * p) <= start - 0.5 * a * p @ g + 0.5 * a * p @ H @ exact
            for a in (alpha, 2.0 * alpha)
        ]
        assert holds == [True, False]
        found.append(alpha)
    assert max(found) > 1.9 * min(found)


@ctypes.CFUNCTYPE(None, ctypes.c_ssize_t, *[ctypes.POINTER(ctypes.c_double)] * 5, ctypes.c_void_p)
def wave(n, y, z, value, d1, d2, params):
    pass


def test_a_loss_without_convexity_is_refused_before_any_release(data, spied):
    loss = dpk.losses.Custom(scipy.LowLevelCallable(wave), convex=False, smoothness=1.0)
    with pytest.raises(ValueError, match="loss must be convex in local_newton, got 'custom'"):
        run(data, loss=loss)
    assert not spied


@for_each(
    ("bad", "message"),
    [
        ({"hess_clip": 0.0}, "hess_clip"),
        ({"hess_clip": math.inf}, "hess_clip"),
        ({"hess_clip": "1"}, "TypeError: hess_clip"),
        ({"floor": 0.0}, "floor"),
        ({"floor": -1.0}, "floor"),
        ({"floor": math.nan}, "floor"),
        ({"floor": "noise"}, "floor"),
        ({"max_step": 0.0}, "max_step"),
        ({"max_step": True}, "TypeError: max_step"),
        ({"step_size": "auto"}, "step_size must be .*damped"),
        ({"step_size": [0.1, 0.1]}, "step_size"),
        ({"step_size": "paper_search"}, "step_size='paper_search' needs calibration"),
        ({"trust": "central", "local_steps": 2}, "local_steps must be 1 under trust"),
        ({"trust": "central", "calibration": "paper"}, "calibration='paper' needs"),
        (
            {"trust": "central", "step_size": "private_search", "weights": "uniform"},
            "needs weights='size'",
        ),
    ],
)
def test_a_bad_argument_is_refused_by_name_before_any_release(data, spied, bad, message):
    assert_refused(message, run, data, **bad)
    assert not spied


def test_without_a_row_bound_hess_clip_is_needed_with_a_budget(spied):
    data = make_data(row_bound=None)
    with pytest.raises(ValueError, match="hess_clip is needed"):
        run(data)
    assert not spied
    assert run(data, hess_clip=0.5).privacy.mu <= 1.0
    assert free(data).privacy.mu == math.inf


def test_paper_search_is_the_only_reader_of_unnoised_numbers(data, monkeypatch):
    """Every other strategy runs where the un-noised search cannot be made."""
    monkeypatch.setattr(PaperSearch, "__init__", lambda *_, **__: pytest.fail("made"))
    for step_size in (0.5, "damped", "private_search"):
        run(data, step_size=step_size)


def test_line_search_bounds_of_every_silo_are_those_of_the_silo_alone(data):
    rng = np.random.default_rng(2)
    p, steps = rng.standard_normal((3, 5)), np.array([2.0, 0.5])
    bound = np.outer([1.0, 0.01, 4.0], steps)
    grid = np.outer([2.0**-20, 2.0**-30, 2.0**-18], np.ones(2))
    how = {"loss": "logistic", "steps": steps}
    together = kernels.line_search(data, np.zeros(5), p, bound=bound, grid=grid, **how)
    by_numpy = reference.line_search(data, np.zeros(5), p, bound=bound, grid=grid, **how)
    for j in range(3):
        alone = kernels.line_search(
            data, np.zeros(5), p, bound=bound[j], grid=grid[j], n_threads=2, **how
        )
        np.testing.assert_array_equal(together[j], alone[j])
        np.testing.assert_allclose(together[j], by_numpy[j], atol=data.sizes[j] * grid[j, 0])


def test_a_private_search_without_a_grid_is_refused_before_any_release():
    rng = np.random.default_rng(0)
    y = np.where(rng.random(60) < 0.5, -1.0, 1.0)
    data = dpk.SiloData(rng.normal(size=(60, 3)), y, [0, 30, 60], row_bound=1.0)
    with pytest.raises(ValueError, match="has no grid for its smallest candidate") as caught:
        dpk.solve(
            "local_newton",
            data,
            budget=dpk.Budget(mu=1e-5),
            clip=1.0,
            step_size="private_search",
            trust="silo",
        )
    assert not getattr(caught.value, "__notes__", [])
