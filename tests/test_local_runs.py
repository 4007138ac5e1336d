"""The sensitivity of hidden local runs: the recursion, and the doubles that the kernels compute."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from cases import for_each
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import dpkern as dpk
from dpkern import kernels
from dpkern import reference as ref
from dpkern.models.penalties import L1, PL
from dpkern.privacy.mechanisms.last_iterate import last_iterate_factor
from dpkern.privacy.sensitivity import local_runs as module
from dpkern.privacy.sensitivity.local_runs import LocalRuns, norm_bound
from dpkern.privacy.sensitivity.propagation import expansions, propagate, propagate_batches

# Hidden steps refuse a loss without a bound of its second derivative, or of its rounding errors.
SMOOTH_LOSSES = [
    loss
    for make in dpk.losses.LOSSES.values()
    if math.isfinite((loss := make()).smoothness + loss.kappa)
]
RUNNERS = [ref.glm_local_descent, kernels.glm_local_descent]
U = 2.0**-53


@pytest.fixture(params=RUNNERS, ids=["numpy", "compiled"])
def descent(request):
    return request.param


# ------------------------------------------------------------------------------ the recursion


def spelled_out(steps, low, high):
    """sum_s eta_s prod_{u > s} c_u and sum_s prod_{u > s} c_u, term by term."""
    c = [max(abs(1 - Fraction(e) * low), abs(1 - Fraction(e) * high)) for e in steps]
    E = F = Fraction(0)
    for s, eta in enumerate(steps):
        after = math.prod(c[s + 1 :], start=Fraction(1))
        E, F = E + Fraction(eta) * after, F + after
    return E, F


curvatures = st.fractions(-20, 20, max_denominator=997)


@pytest.mark.proof
@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=12),
    ends=st.tuples(curvatures, curvatures).map(sorted),
)
def test_carried_steps_are_the_sum_spelled_out_and_rounded_up(steps, ends):
    E, F, largest = propagate(*expansions(steps, *ends))
    for ours, exact in zip((E, F), spelled_out(steps, *ends), strict=True):
        assert exact <= ours <= exact * (1 + len(steps) * Fraction(2) ** -52)
    assert largest == max(max(abs(1 - Fraction(e) * k) for k in ends) for e in steps)


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=12),
    ends=st.tuples(curvatures, curvatures).map(sorted),
    sizes=st.tuples(st.integers(1, 30), st.integers(1, 30)).map(sorted),
    shift=st.integers(0, 29),
)
def test_carried_batches_are_those_of_the_record_that_is_used_at_the_worst_steps(
    steps, ends, sizes, shift
):
    """Every place in the order by itself, wherever the first step starts in it."""
    b, n = sizes
    shares = [spelled_out(steps[t:], *ends)[0] for t in range(len(steps))]
    shares = [a - (shares[t + 1] if t + 1 < len(steps) else 0) for t, a in enumerate(shares)]
    used = [Fraction(0)] * n
    times = [0] * n
    for t, share in enumerate(shares):
        for i in range(t * b, t * b + b):
            used[(i + shift) % n] += share
            times[(i + shift) % n] += 1
    ours = Fraction(*propagate_batches(*expansions(steps, *ends), sizes=[n], batch=b)[n])
    assert max(used) <= ours <= max(used) * (1 + len(steps) * Fraction(2) ** -51)
    assert max(times) == -(-len(steps) * b // n)


def public(**changes):
    """A silo of ten records, rows in the unit ball, logistic loss, fifty steps of 1."""
    numbers = {
        "clip": 1.0, "dim": 3, "sizes": (10,), "step_sizes": (1.0,) * 50,
        "loss_smoothness": 0.25, "loss_kappa": 5.0, "row_bound": 1.0,
    }  # fmt: skip
    return LocalRuns(**(numbers | changes))


def nominal(runs, n):
    """The sensitivity in real arithmetic of a silo of n records."""
    records, ratio = runs._nominal[n]
    carried = Fraction(*ratio)
    return float(carried / records)


def test_errors_of_the_loss_count_in_full():
    """2 tau_j E_K, of which tau_j has u kappa C."""
    (with_kappa,), (without,) = (
        public(loss_kappa=k).sensitivities(0.0, [1.0]) for k in (2.0**44, 0.0)
    )
    assert with_kappa - without == near(2 * 2.0**44 * 2.0**-53 * 50)


def near(value):
    return pytest.approx(value, rel=1e-9)


def test_carried_steps_have_the_closed_forms_of_each_kind_of_objective():
    K = 50
    assert public().propagation == near(K)
    assert public(l2=0.1).propagation == near((1 - 0.9**K) / 0.1)
    assert public(l2=0.1, all_penalized=False).propagation == near(K)
    assert public(convex=False).propagation == near((1.25**K - 1) / 0.25)
    # beyond 2 / L steps expand; the recursion stays true
    assert public(loss_smoothness=2.5).propagation == near((1.5**K - 1) / 0.5)
    # the smooth penalty of curvature -4 .. 8 with strength 0.01, alone and below l2 = 0.1
    assert public(curvature=(-0.04, 0.08)).propagation == near((1.04**K - 1) / 0.04)
    assert public(curvature=(-0.04, 0.08), l2=0.1).propagation == near((1 - 0.94**K) / 0.06)


@for_each("c", [0.0, 0.3, 0.9, 0.999, 1 - 2.0**-40])
@for_each("K", [1, 2, 3, 50, 1001])
def test_last_iterate_factor_is_the_least_that_shifts_can_spend_and_at_most_root_k(c, K):
    """min sum a_k^2 over shifts with sum c^(K-k) a_k = sum c^(K-k), by Cauchy and Schwarz."""
    mpmath.mp.prec = 200
    powers = [mpmath.mpf(c) ** k for k in range(K)]
    least = mpmath.sqrt(sum(powers) ** 2 / sum(p**2 for p in powers))
    factor = last_iterate_factor(Fraction(c), K)
    assert factor >= least * (1 - mpmath.mpf(2) ** -190)
    assert factor == pytest.approx(float(least), rel=1e-11 if c < 0.9999 else 1e-3)
    assert factor <= math.sqrt(K) * (1 + 1e-3)


def test_the_last_iterate_needs_a_contraction():
    for c in (Fraction(1), 1 - Fraction(2) ** -60, Fraction(3)):
        with pytest.raises(ValueError, match="local steps that contract"):
            last_iterate_factor(c, 5)


# ------------------------------------------------------------- what the real arithmetic gives


def silo(X, y, **options):
    options = {"row_bound": 1.0, "task": "regression"} | options
    return dpk.SiloData(np.ascontiguousarray(X, dtype=float), np.asarray(y, float), [0, len(y)],
                        **options)  # fmt: skip


def described(data, *, loss, clip, step_size, steps, l2=0.0, smooth=None,
              penalize_intercept=True, l1=0.0):  # fmt: skip
    low = high = 0.0
    if smooth is not None:
        low = smooth.strength * smooth.strong_convexity
        high = smooth.strength * smooth.smoothness
    return LocalRuns(
        clip=clip, dim=data.d, sizes=tuple(data.sizes.tolist()),
        step_sizes=tuple(np.broadcast_to(step_size, (steps,)).tolist()),
        loss_smoothness=loss.smoothness, loss_kappa=loss.kappa, convex=loss.convex,
        row_bound=data.row_bound, l2=l2, curvature=(low, high),
        all_penalized=penalize_intercept or not data.intercept,
    )  # fmt: skip


def ran(descent, data, w, runs, *, loss, l2=0.0, smooth=None, penalize_intercept=True, l1=0.0):
    return descent(
        data, w, loss=loss, clip=runs.clip, steps=len(runs.step_sizes),
        step_size=np.array(runs.step_sizes), l2=l2, smooth=smooth,
        prox=L1(l1) if l1 else None, penalize_intercept=penalize_intercept, grid=runs.grids,
    )  # fmt: skip


def distance(a, b):
    """|a - b| of doubles, rounded down a little."""
    square = sum((Fraction(float(x)) - Fraction(float(y))) ** 2 for x, y in zip(a, b, strict=True))
    return math.sqrt(square) * (1 - 1e-14)


def moved_and_bound(descent, X, labels, w, *, loss, clip, step_size, steps, data=None, **options):
    """(|theta_K - theta'_K|, D_v, nominal) of two label vectors (or pairs of X) on silo 0."""
    thetas = []
    for x, y in zip(X, labels, strict=True):
        own = silo(x, y, **(data or {}))
        runs = described(own, loss=loss, clip=clip, step_size=step_size, steps=steps, **options)
        thetas.append(ran(descent, own, w, runs, loss=loss, **options)[0])
    start = float(np.linalg.norm(w)) * (1 + 1e-12)
    (D,) = runs.sensitivities(start, [1.0])
    return distance(*thetas), D, 2 * clip / len(labels[0]) * runs.propagation


def one_apart(n, x, y=0.0, d=3):
    """n rows of zeros but the last, which is x; labels y and -y there."""
    X, labels = np.zeros((n, d)), np.zeros(n)
    X[-1] = x
    first, second = labels.copy(), labels.copy()
    first[-1], second[-1] = y, -y
    return (X, X), (first, second)


@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_opposite_saturated_records_come_near_the_bound(descent, l2):
    """Their gradients are +C and -C at every step: nothing of 2C/n E_K is wasted."""
    X, y = one_apart(7, (1.0, 0.0, 0.0), 1e6)
    moved, D, nominal = moved_and_bound(
        descent, X, y, np.zeros(3), loss=dpk.losses.Squared(), clip=0.5, step_size=0.25, steps=20,
        l2=l2,
    )  # fmt: skip
    assert 0.9999 * nominal < moved <= D <= nominal * (1 + 1e-9)


def test_steps_at_the_edge_and_beyond_it_come_near_the_bound(descent):
    """A record saturates and the others have curvature L: every step turns the difference over."""
    n, eta = 200, 2.4
    rows = np.zeros((n, 3))
    rows[:, 0] = 1.0
    label = np.zeros(n)
    first, second = label.copy(), label.copy()
    # three steps: the record pushes up, down, up if its label is between the iterates
    first[-1], second[-1] = 1e6, -1e6
    moved, D, nominal = moved_and_bound(
        descent, (rows, rows), (first, second), np.zeros(3), loss=dpk.losses.Squared(), clip=1.0,
        step_size=eta, steps=9,
    )  # fmt: skip
    alternating = 2 / n * eta * abs(sum((1 - eta * (n - 1) / n) ** k for k in range(9)))
    assert moved == pytest.approx(alternating, rel=1e-6)
    assert moved <= D
    assert nominal > 2 / n * eta * 9  # the convex bound for eta <= 2 / L would have been less


def test_unpenalised_intercept_is_carried_without_contraction(descent):
    """A record of the intercept alone: with lam = l2 there, the claim would be a fifth."""
    X, y = one_apart(10, (0.0, 0.0), 1e6, d=2)
    X[0][:-1, 0] = 1e12  # the others' rows, scaled into the ball, have nearly no intercept
    options = {"loss": dpk.losses.Squared(), "clip": 1.0, "step_size": 0.5, "steps": 100}
    moved, D, nominal = moved_and_bound(
        descent, X, y, np.zeros(3), l2=0.1, penalize_intercept=False, data={"intercept": True},
        **options,
    )  # fmt: skip
    assert 0.999 * nominal < moved <= D
    assert moved > 4.9 * 2 / 10 * public(step_sizes=(0.5,) * 100, l2=0.1).propagation


def test_largest_curvature_counts_beside_an_unpenalised_intercept(descent):
    """1 - eta L alone, with lam = 0 of the intercept, would claim c = 1 where the others flip."""
    n = 400
    rows = np.full((n, 1), 1e4)
    first, second = np.zeros(n), np.zeros(n)
    first[-1], second[-1] = 1e9, -1e9
    options = {"loss": dpk.losses.Squared(), "clip": 1.0, "step_size": 1.0, "steps": 5, "l2": 1.9}
    moved, D, _ = moved_and_bound(
        descent, (rows, rows), (first, second), np.zeros(2), penalize_intercept=False,
        data={"intercept": True, "row_bound": 1.25}, **options,
    )  # fmt: skip
    assert 1.25**2 < 2.0  # so that |1 - eta L| < 1
    assert moved > 2 / n * 5 * 1.5
    assert moved <= D


def test_concave_stretch_of_the_smooth_penalty_comes_near_the_bound(descent):
    """At |theta| = pi/2 its curvature is -4: neighbours are driven apart by 1 + 4 eta strength."""
    n, strength, eta = 10, 0.05, 0.25
    clip = strength * math.pi * n / (n - 1)  # f'(pi/2) = pi: the others hold theta where it is
    labels = np.full((2, n), 1e6)
    labels[1, -1] = -1e6
    rows = np.ones((n, 1))
    moved, D, _ = moved_and_bound(
        descent, (rows, rows), labels, np.array([math.pi / 2]), loss=dpk.losses.Huber(1e5),
        clip=clip, step_size=eta, steps=4, smooth=PL(strength),
    )  # fmt: skip
    assert moved > 1.05 * 2 * clip / n * eta * 4
    assert moved <= D


# ----------------------------------------------------------------------------- on batches


def in_turn(n, b, steps, first=0, order=None):
    """Batches of one silo, shape (1, steps, b): places first .. first + steps b - 1, modulo n."""
    order = np.arange(n) if order is None else order
    places = np.arange(first, first + steps * b) % n
    return np.sort(order[places].reshape(1, steps, b), axis=2)


def parted(descent, X, labels, batches, *, loss, clip, step_size, l2=0.0, w=None, **options):
    """(|theta_K - theta'_K|, D_v, nominal) of two neighbours on the same batches."""
    _, steps, b = batches.shape
    thetas = []
    for x, y in zip(X, labels, strict=True):
        data = silo(x, y, **options)
        runs = LocalRuns(
            clip=clip, dim=data.d, sizes=(len(y),), l2=l2, batch_size=b,
            step_sizes=tuple(np.broadcast_to(step_size, (steps,)).tolist()),
            loss_smoothness=loss.smoothness, loss_kappa=loss.kappa, row_bound=data.row_bound,
            convex=loss.convex,
        )  # fmt: skip
        start = np.zeros(data.d) if w is None else w
        thetas.append(
            descent(
                data, start, loss=loss, clip=clip, steps=steps, l2=l2, grid=runs.grids,
                step_size=np.array(runs.step_sizes), batches=batches,
            )[0]
        )  # fmt: skip
    (D,) = runs.sensitivities(float(np.linalg.norm(start)), [1.0])
    return distance(*thetas), D, nominal(runs, len(y))


@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("steps", [3, 4, 9])
def test_opposite_saturated_records_in_batches_come_near_the_bound_at_their_worst_place(
    descent, l2, steps
):
    """Eleven records, three a step: used once in three steps, twice in four, thrice in nine."""
    n, b, eta, clip = 11, 3, 0.25, 0.5
    X, y = one_apart(n, (1.0, 0.0, 0.0), 1e6)
    moved = []
    for first in range(n):  # of all steps: the record is the last one, and has every place
        far, D, nominal = parted(
            descent, X, y, in_turn(n, b, steps, first), loss=dpk.losses.Squared(), clip=clip,
            step_size=eta, l2=l2,
        )  # fmt: skip
        assert far <= D <= nominal * (1 + 1e-9)
        moved.append(far)
    assert max(moved) > 0.9999 * nominal
    uses = -(-steps * b // n)
    assert max(moved) > (uses - 0.5) * 2 * clip / b * eta * (1 - eta * l2) ** steps
    assert min(moved) < max(moved)
    # What full batches of so many records would be charged is not enough: it counts all n.
    assert steps > 3 or nominal > 2 * clip / n * eta * steps


def test_batches_whose_steps_expand_come_near_the_bound_at_the_first_step(descent):
    """The others have curvature L and no slope: every later step turns and stretches the rest."""
    n, b, eta, steps = 400, 100, 2.4, 4
    rows = np.zeros((n, 3))
    rows[:, 0] = 1.0
    X, labels = (rows, rows), np.zeros((2, n))
    labels[:, 0] = 1e6, -1e6
    far, D, nominal = parted(
        descent, X, labels, in_turn(n, b, steps), loss=dpk.losses.Squared(), clip=1.0,
        step_size=eta,
    )  # fmt: skip
    assert nominal == near(2 / b * eta * 1.4**3)
    assert 0.999 * nominal < far <= D
    late, D, _ = parted(
        descent, X, labels, in_turn(n, b, steps, first=b), loss=dpk.losses.Squared(), clip=1.0,
        step_size=eta,
    )  # fmt: skip
    assert late < far / 2
    assert late <= D


@pytest.mark.proof
@pytest.mark.parametrize("runner", RUNNERS, ids=["numpy", "compiled"])
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_computed_runs_of_neighbours_on_batches_never_part_by_more_than_the_bound(runner, data):
    draw = data.draw
    n, d, steps = draw(st.integers(1, 9)), draw(st.integers(1, 5)), draw(st.integers(1, 10))
    b, first = draw(st.integers(1, n)), draw(st.integers(0, n - 1))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    X = rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-2, 2, (n, 1))
    y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    other, labels = X.copy(), y.copy()
    labels[-1] = -y[-1]
    if draw(st.booleans()):
        other[-1] = rng.standard_normal(d)
    loss = draw(st.sampled_from(SMOOTH_LOSSES))
    row_bound = 10.0 ** draw(st.floats(-1, 1))
    L = loss.smoothness * row_bound**2
    l2 = draw(st.sampled_from([0.0, 0.1, 1.0])) * L
    step_size = rng.uniform(0.05, draw(st.sampled_from([0.5, 2.0, 2.2])), steps) / (L + l2)
    if np.max(step_size) * l2 > 2.0:
        step_size = step_size / 1.2
    try:
        far, D, _ = parted(
            runner, (X, other), (y, labels), in_turn(n, b, steps, first, rng.permutation(n)),
            loss=loss, clip=10.0 ** draw(st.floats(-3, 1)), step_size=step_size, l2=l2,
            row_bound=row_bound, w=rng.standard_normal(d) * 10.0 ** draw(st.integers(-3, 3)),
        )  # fmt: skip
    except ValueError as error:
        assert "floating-point errors" in str(error)  # noqa: PT017
        return
    assert far <= D


def test_batches_of_all_records_have_the_bound_of_full_ones():
    for steps in ((0.5,), (0.5, 0.3, 0.9)):
        full, batches = (
            public(step_sizes=steps, l2=0.1, batch_size=b).sensitivities(1.0, [0.3])
            for b in (None, 10)
        )
        assert full == batches


def test_float_terms_of_batches_count_every_step():
    """A run of many small batches: what floats add grows with the steps, the record's use not."""
    runs = [public(sizes=(2**20,), batch_size=2**10, step_sizes=(1.0,) * K) for K in (1, 512)]
    excess = [r.sensitivities(0.0, [1.0])[0] - nominal(r, 2**20) for r in runs]
    assert runs[0]._nominal == runs[1]._nominal
    assert excess[1] > 500 * excess[0] > 0.0


def test_bounds_that_are_not_for_batches_refuse_them():
    runs = public(batch_size=5, l2=0.1)
    for call in (
        lambda: runs.hidden_states(1.0, keep=0.5, take=0.5, weights=[1.0]),
        lambda: runs.step_sensitivity(10, 1.0, 2.0**-40),
    ):
        with pytest.raises(ValueError, match="batch_size must be None for this bound, got 5"):
            call()


def test_m_uneven_silos_cost_nothing():
    sizes = tuple(range(20, 20 + 32 * 37, 37))
    runs = public(sizes=sizes, l2=0.01)
    n = sum(sizes)
    D = runs.sensitivities(0.0, [k / n for k in sizes])
    assert max(D) == pytest.approx(2 / n * runs.propagation, rel=1e-9)
    uniform = runs.sensitivities(0.0, [1 / 32] * 32)
    assert max(uniform) == uniform[0] == pytest.approx(2 / (32 * 20) * runs.propagation, rel=1e-9)


# -------------------------------------------------------------------- in floating point


coordinates = st.floats(-1.0, 1.0).map(lambda v: v * 3)


@st.composite
def neighbours(draw):
    n, d = draw(st.integers(1, 8)), draw(st.integers(1, 5))
    seed = draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-2, 2, (n, 1))
    y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    other, labels = X.copy(), y.copy()
    other[-1] = rng.standard_normal(d) * 10.0 ** rng.uniform(-2, 2)
    kind = draw(st.sampled_from(["opposite", "fresh"]))
    if kind == "opposite":
        other[-1] = X[-1]
    labels[-1] = -y[-1]
    w = rng.standard_normal(d + 1) * 10.0 ** draw(st.integers(-3, 6))
    loss = draw(st.sampled_from(SMOOTH_LOSSES))
    row_bound = 10.0 ** draw(st.floats(-1, 1))
    L = loss.smoothness * row_bound**2
    l2 = draw(st.sampled_from([0.0, 0.1, 1.0])) * L
    smooth = draw(st.sampled_from([None, PL(0.05 * L), PL(0.5 * L)]))
    top = L + l2 + (8 * smooth.strength if smooth else 0.0)
    steps = draw(st.integers(1, 12))
    if draw(st.booleans()):
        step_size = draw(st.sampled_from([0.1, 1.0, 2.0, 2.2])) / top
    else:
        step_size = np.array(draw(st.lists(st.floats(0.01, 2.0), min_size=steps, max_size=steps)))
        step_size = step_size / top
    if top > L and np.max(step_size) * (top - L) > 2.0:
        step_size = step_size / 1.2
    return {
        "X": (X, other), "labels": (y, labels), "w": w, "loss": loss, "steps": steps,
        "clip": 10.0 ** draw(st.floats(-3, 1)), "step_size": step_size, "l2": l2,
        "smooth": smooth, "l1": draw(st.sampled_from([0.0, 0.01, 1.0])),
        "penalize_intercept": draw(st.booleans()),
        "data": {"intercept": True, "row_bound": row_bound},
    }  # fmt: skip


@pytest.mark.proof
@pytest.mark.parametrize("runner", RUNNERS, ids=["numpy", "compiled"])
@settings(max_examples=150, deadline=None)
@given(case=neighbours())
def test_computed_runs_of_neighbours_never_part_by_more_than_the_bound(runner, case):
    try:
        moved, D, _ = moved_and_bound(runner, **case)
    except ValueError as error:
        assert "floating-point errors" in str(error)  # noqa: PT017
        return
    assert moved <= D


def exact_run(data, w, runs, *, loss, l2, smooth, penalize_intercept, l1):
    """The run of privacy's real arithmetic in 200 bits, on the kernel's row ratios and limits."""
    mpmath.mp.prec = 200
    V, square, ratio, (y, *_) = ref.glm._stored_rows(data, None, 0)
    lim = ref.clip.clip_limit(square, data.d, clip=runs.clip, grid=runs.grids[0])
    vector = np.vectorize(mpmath.mpf, otypes=[object])
    V, ratio, y, lim, theta = map(vector, (V, ratio, y, lim, w))
    penalized = np.arange(data.d) < data.d - (0 if penalize_intercept else 1)
    for eta in map(mpmath.mpf, runs.step_sizes):
        z = ratio * (V @ theta)
        s = [r * SLOPES[loss.name](a, b, *loss.params) for r, a, b in zip(ratio, y, z, strict=True)]
        s = np.array([min(max(a, -b), b) for a, b in zip(s, lim, strict=True)])
        c = mpmath.mpf(l2)
        if smooth is not None:
            r = mpmath.sqrt(sum(theta[penalized] ** 2))
            c += smooth.strength * (2 + 3 * mpmath.sin(2 * r) / r if r else 8)
        theta = theta - eta * (s @ V / len(y) + c * np.where(penalized, theta, 0))
        t = mpmath.mpf(float(eta) * l1)
        shrunk = [mpmath.sign(v) * max(abs(v) - t, 0) for v in theta]
        theta = np.where(penalized, shrunk, theta)
    return theta


# Derivatives to 200 bits. A loss without a line here is left out of the test below.
SLOPES = {
    "logistic": lambda y, z: -y / (1 + mpmath.exp(y * z)),
    "squared": lambda y, z: z - y,
    "huber": lambda y, z, delta: min(max(z - y, -delta), delta),
    "smoothed_hinge": lambda y, z, h: -y * min(max(1 - y * z, 0), h) / h,
    "squared_hinge": lambda y, z: -y * max(1 - y * z, 0),
}


@pytest.mark.proof
@pytest.mark.parametrize("runner", RUNNERS, ids=["numpy", "compiled"])
@settings(max_examples=60, deadline=None)
@given(case=neighbours(), coarse=st.booleans())
def test_computed_runs_stay_within_tau_of_200_bit_arithmetic(runner, case, coarse):
    """|theta_K - exact| <= tau E_K + 4 u W F_K: the step from real arithmetic to doubles."""
    assume(case["loss"].name in SLOPES)
    data = silo(case["X"][0], case["labels"][0], **case["data"])
    names = ("l2", "smooth", "penalize_intercept", "l1")
    options = {name: case[name] for name in names}
    shape = {name: case[name] for name in ("loss", "clip", "step_size", "steps")}
    runs = described(data, **shape, **options)
    if coarse:  # what 2^24 records would need
        exponent = math.floor(math.log2(case["clip"] / 32 / math.sqrt(data.d)))
        vars(runs)["grids"] = np.array([2.0**exponent])
    w = case["w"]
    ours = ran(runner, data, w, runs, loss=case["loss"], **options)[0]
    exact = exact_run(data, w, runs, loss=case["loss"], **options)
    E, F, _ = runs._propagation
    W = runs.iterate_bound(float(np.linalg.norm(w)) * (1 + 1e-12))
    error = mpmath.sqrt(sum((mpmath.mpf(a) - b) ** 2 for a, b in zip(ours, exact, strict=True)))
    bound = Fraction(*runs._tau(runs.grids[0], W.as_integer_ratio())) * E + 4 * Fraction(U) * W * F
    assert error <= mpmath.mpf(bound.numerator) / bound.denominator
    assert np.linalg.norm(ours) <= float(W)


# ------------------------------------------------------- what each floating-point term is for


def test_rounding_of_common_records_needs_the_grid_term(descent, monkeypatch):
    """All records lie beside a rounding boundary, and the second step finds them on two sides.

    Their coordinates but the first are kicked by a whole grid step: more than 2C/n E_K explains.
    """
    n, d, q = 400, 16, 2.0**-7
    x = np.full(d, 1 / 16)
    x[0] = math.sqrt(1.0 - (d - 1) / 256)
    monkeypatch.setattr(module, "choose_grid", lambda **_: q)
    monkeypatch.setattr(module, "LARGEST_EXCESS", 1000)
    loss, w = dpk.losses.Squared(), np.zeros(d)
    X = np.tile(x, (n, 1))
    X[-1] = 0.0
    X[-1, 0] = 1.0
    best = 0.0
    for label in np.linspace(0.5, 0.75, 400):
        y = np.full((2, n), label)
        y[:, -1] = 1e6, -1e6
        moved, D, nominal = moved_and_bound(
            descent, (X, X), y, w, loss=loss, clip=1.0, step_size=0.5, steps=2
        )
        assert moved <= D
        best = max(best, moved / nominal)
        if best > 2.5:
            break
    assert best > 2.5


def test_a_model_far_from_zero_needs_the_rounding_of_its_steps(descent, monkeypatch):
    """theta_0 near 2^44: a step of C/n is half a unit in the last place, and rounds to one."""
    monkeypatch.setattr(module, "LARGEST_EXCESS", 10**9)
    n, d = 1000, 16
    X, y = one_apart(n, np.full(d, 1 / 4), 1e30, d=d)
    w = 1.5 * 2.0**44 + np.arange(d) * 2.0**-8
    worst = 0.0
    for clip in (1.0, 7.9, 8.5, 20.0):
        moved, D, nominal = moved_and_bound(
            descent, X, y, w, loss=dpk.losses.Huber(1e9), clip=clip, step_size=1.0, steps=50,
            data={"row_bound": 2.0**-15},
        )  # fmt: skip
        assert moved <= D
        worst = max(worst, moved / nominal)
    assert worst > 1.9


@pytest.mark.usefixtures("isa")
def test_margins_far_from_zero_need_their_rounding_term():
    """Sixteen coordinates cancel at 2^44; the others' products are lost beside them, or not.

    Each is just above half a unit in the last place in one run and just below in the other, so
    that the computed margins of all records differ, though the exact ones hardly do. Made for the
    two times eight lanes of the compiled dot product.
    """
    d, n, clip, eta = 4096, 200, 0.25, 12.0
    w = np.full(d, 2.0**-9)
    w[:8], w[8:16] = 1.5 * 2.0**44, -1.5 * 2.0**44
    X = np.full((n, d), 2.0**-6)
    X[-1, :16] = 0.0
    y = np.zeros((2, n))
    y[:, -1] = 1e30, -1e30
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LARGEST_EXCESS", 10**12)
        moved, D, nominal = moved_and_bound(
            kernels.glm_local_descent, (X, X), y, w, loss=dpk.losses.Squared(), clip=clip,
            step_size=np.array([1e-3, eta]), steps=2,
        )  # fmt: skip
    steps = 8 * U * np.linalg.norm(w) * (1 + (eta - 1) + 1)
    assert 2.0 * (nominal + steps) < moved <= D


REFUSED = [
    ({"row_bound": math.inf}, "row_bound must be finite .* give the data a row_bound"),
    ({"batch_size": 11}, r"batch_size must be 1 to 10, .* got 11"),
    ({"batch_size": 0}, r"batch_size must be 1 to 10, .* got 0"),
    ({"loss_smoothness": math.inf}, "loss must have a bounded second derivative"),
    ({"loss_kappa": math.inf}, "loss must have a finite kappa"),
    ({"clip": math.inf}, "clip must be finite"),
    ({"l2": 2.1}, r"step_size must be at most 2 / 2.1, .* got 1.0"),
    ({"l2": 1.9, "curvature": (-0.1, 0.2)}, "at most 2 / 2.1"),
    ({"clip": 1e-40}, r"at least 2\^-100"),
    ({"row_bound": 1e20}, r"at most 2\^100"),
    ({"step_sizes": (1e3,) * 50, "loss_smoothness": 1e10}, "exceeds every double"),
    ({"dim": 2**40}, r"steps times coordinates of at most 2\^40"),
]


@for_each(("changes", "cause"), REFUSED)
def test_what_the_bound_does_not_cover_is_refused_with_its_cause(changes, cause):
    with pytest.raises(ValueError, match=cause):
        public(**changes).sensitivities(0.0, [1.0])


@for_each("d", [1, 1000, 10**7])
def test_smoothness_has_room_for_the_rounding_of_row_norms_and_factors(d):
    """Norm: d/16 + 11 roundings below the true one; factor: one more. Both squared."""
    roundings = 2 * (d / 16 + 12)
    room = public(dim=d, step_sizes=(1.0,)).smoothness / Fraction(1, 4) - 1
    assert room > Fraction(2) ** -41 + Fraction(roundings) * Fraction(U)


def test_float_terms_above_a_quarter_of_the_nominal_sensitivity_are_refused():
    runs = public(sizes=(2**22,), dim=1000)
    nominal = 2 / 2**22 * runs.propagation
    assert nominal < runs.sensitivities(0.0, [1.0])[0] < 1.25 * nominal
    with pytest.raises(ValueError, match=r"floating-point errors .* above 1.25"):
        public(sizes=(2**24,), dim=1000).sensitivities(0.0, [1.0])
    with pytest.raises(ValueError, match=r"floating-point errors .* above 1.25"):
        runs.sensitivities(1e7, [1.0])
    for start in (1e40, math.inf, math.nan):
        with pytest.raises(ValueError, match=r"a model of norm beyond the 2\^100"):
            runs.sensitivities(start, [1.0])


def test_norm_bound_is_a_power_of_two_above_the_norm_and_the_least():
    for w in (np.zeros(3), np.array([3.0, 4.0]), np.full(7, 1e-300), np.array([2.0**40])):
        bound = norm_bound(w, 0.75)
        assert math.frexp(bound)[0] == 0.5
        assert max(np.linalg.norm(w), 0.75) < bound <= 2 * max(np.linalg.norm(w), 0.75) * 1.001
    assert norm_bound(np.array([np.inf]), 1.0) == math.inf
