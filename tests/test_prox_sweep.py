"""ADMM sweeps: reference, agreement of states, bounds, sensitivity, noise, what is refused."""

import itertools
import math

import mpmath
import numpy as np
import pytest
import scipy.optimize
from adversarial import FLUSH, coarsest_grid, rows
from cases import for_each
from makers import assert_refused, read_only
from pairwise import pairwise

from dpkern import NoiseStream, _core, kernels
from dpkern import reference as ref
from dpkern.kernels import ProxState
from dpkern.kernels.grids import finest_grid
from dpkern.reference.admm import effective_rows as reference_rows
from dpkern.stream import Purpose

KINDS = ["collapsed", "per_user", "public"]


def state_of(kind, data, start=0.1):
    return getattr(ProxState, kind)(data, np.full(data.d, start))


def copy(state):
    return ProxState(state.common.copy(), None if state.scale is None else state.scale.copy())


def bound_of(kind, how):
    factor = {"collapsed": 1.0, "per_user": 4 * how["relaxation"], "public": 2 * how["relaxation"]}
    return factor[kind] * how["prox_step"] * how["clip"]


def centers(data, count, seed=1):
    return 0.3 * np.random.default_rng(seed).standard_normal((count, data.d))


def full(state, data):
    """Every u_i of a state."""
    if state.scale is None:
        return state.common
    V, _, ratio, *_ = reference_rows(data)
    return state.common + (state.scale * ratio)[:, np.newaxis] * V


def assert_same_states(a, b, **tolerance):
    np.testing.assert_allclose(a.common, b.common, **tolerance)
    if a.scale is not None:
        np.testing.assert_allclose(a.scale, b.scale, **tolerance)


def assert_identical(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


def arrays(state):
    return [a for a in (state.common, state.scale) if a is not None]


@pairwise("isa", "plain_layout", "convex", kind=KINDS, clip=[0.1, math.inf])
def test_sweeps_agree_with_their_references(make, layout, loss, kind, clip):
    data = make(n=900, **layout)
    ours = state_of(kind, data)
    by_numpy = copy(ours)
    grid = None if math.isinf(clip) else 2.0**-38
    how = dict(loss=loss, clip=clip, prox_step=2.0, relaxation=0.4, grid=grid)
    for number, z in enumerate(centers(data, 3)):
        if kind != "collapsed" and number:
            how["rows"] = np.arange(number, data.n, 3)
        results = kernels.prox_sweep(data, ours, z, **how), ref.prox_sweep(data, by_numpy, z, **how)
        for a, b in zip(*(np.atleast_2d(r) for r in results), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
        # A rounding of t near the middle of two multiples of the grid moves a message by a step.
        assert_same_states(ours, by_numpy, rtol=1e-11, atol=1e-12 if grid is None else 4 * grid)


@pairwise("isa", "plain_layout", "convex", change_clip=[0.02, 0.3, 10.0])
def test_sweeps_with_clipped_changes_agree_with_their_reference(make, layout, loss, change_clip):
    data, grid = make(n=900, **layout), 2.0**-38
    ours = state_of("per_user", data)
    by_numpy = copy(ours)
    how = dict(loss=loss, clip=0.7, prox_step=2.0, relaxation=0.4, grid=grid)
    for number, z in enumerate(centers(data, 4)):
        how["rows"] = np.arange(number, data.n, 2)
        results = [
            sweep(data, state, z, change_clip=change_clip, **how)
            for sweep, state in ((kernels.prox_sweep, ours), (ref.prox_sweep, by_numpy))
        ]
        for a, b in zip(*results, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
        assert_same_states(ours, by_numpy, rtol=1e-11, atol=4 * grid)


@pairwise("isa", kind=KINDS, p=[1, 8, 63, 130, 300, 1100, 9000])
def test_every_width_and_remainder(make, kind, p):
    for n in (1, 2, 9, 67):
        data = make(n=n, p=p, m=1, intercept=True)
        ours = state_of(kind, data)
        by_numpy = copy(ours)
        how = dict(loss="logistic", clip=math.inf, prox_step=2.0, relaxation=0.5)
        for z in centers(data, 2):
            a, b = (
                np.atleast_2d(sweep(data, state, z, **how))
                for sweep, state in ((kernels.prox_sweep, ours), (ref.prox_sweep, by_numpy))
            )
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)
            assert_same_states(ours, by_numpy, rtol=1e-10, atol=1e-12)


@pairwise("isa", "plain_layout", "convex")
def test_all_states_are_the_same_algorithm(make, layout, loss):
    """Collapsed, per user and public without noise, beside u itself in NumPy."""
    data = make(n=300, **layout)
    how = dict(loss=loss, clip=0.3, prox_step=1.5, relaxation=0.4)
    states = [state_of(kind, data) for kind in KINDS]
    U = full(states[0], data).copy()
    total = U.sum(axis=0)
    sums = [total.copy(), total.copy()]  # as messages of the last two carry them
    for z in centers(data, 6):
        X = kernels.loss_prox(data, 2.0 * z - U, 1.5, loss=loss, clip=0.3)[0]
        U += 0.8 * (X - z)
        S = kernels.prox_sweep(data, states[0], z, **how)
        np.testing.assert_allclose(data.n * states[0].common + S, U.sum(axis=0), atol=1e-9)
        S, P = kernels.prox_sweep(data, states[1], z, **how)
        sums[0] += S + P
        sums[1] += kernels.prox_sweep(data, states[2], z, **how)
        for state in states:
            np.testing.assert_allclose(full(state, data), U, rtol=1e-10, atol=1e-11)
        for carried in sums:
            np.testing.assert_allclose(carried, U.sum(axis=0), rtol=1e-9, atol=1e-9)


def test_sweeps_reach_the_minimum_of_the_objective(make):
    data = make(n=200, p=5, m=1, intercept=True)
    l2, n = 0.05, data.n
    V, *_ = reference_rows(data)

    def objective(x):
        return np.mean(np.logaddexp(0.0, -data.y * (V @ x))) + 0.5 * l2 * x @ x

    best = scipy.optimize.minimize(objective, np.zeros(data.d), method="BFGS", tol=1e-9).x
    state, z = state_of("collapsed", data, 0.0), np.zeros(data.d)
    for _ in range(400):
        S = kernels.prox_sweep(
            data, state, z, loss="logistic", clip=10.0, prox_step=2.0, relaxation=0.5
        )
        z = (state.common + S / n) / (1.0 + 2.0 * l2)
    np.testing.assert_allclose(z, best, atol=1e-5)


@for_each("gamma", [1e-3, 1.0, 1e4, 1e12])
@pytest.mark.usefixtures("isa")
def test_the_logistic_root_is_found_from_any_state(bare_records, gamma):
    """To 1e-12 of itself; lam = 1/2 leaves it as the new scale. One feature: margins are exact
    up to a rounding of each of their terms, which the root is not sensitive to."""
    z, starts = 0.75, gamma * np.array([0.0, 1e-8, 0.3, -0.3, 1.0, -1.0])
    cases = list(itertools.product(10.0 ** np.arange(-2, 4), starts, (-1.0, 1.0)))
    a, start, y = (np.array(v) for v in zip(*cases, strict=True))
    data = bare_records(a.reshape(-1, 1), y, [0, len(y)])
    state = ProxState(np.zeros(1), start.copy())
    kernels.prox_sweep(
        data, state, np.array([z]), loss="logistic", clip=math.inf, prox_step=gamma, relaxation=0.5
    )
    with mpmath.workdps(40):
        for found, row, s, label in zip(state.scale, a, start, y, strict=True):
            row, g = mpmath.mpf(row), mpmath.mpf(gamma)
            margin = label * (2 * z * row - mpmath.mpf(s) * row**2)
            low, high = mpmath.mpf(0), mpmath.mpf(650)  # of log(gamma / |t|)
            for _ in range(120):
                middle = (low + high) / 2
                t = g * mpmath.exp(-middle)
                if t * (1 + mpmath.exp(margin + t * row**2)) > g:
                    low = middle
                else:
                    high = middle
            root = g * mpmath.exp(-low)
            if low < 649:
                assert abs(label * found - root) <= 1e-12 * root
            else:
                assert 0.0 <= label * found <= root


@pytest.mark.usefixtures("isa")
def test_a_slope_that_overflows_does_not_end_the_logistic_root(bare_records):
    data = bare_records(np.array([[1e154], [1e154]]), np.array([1.0, -1.0]), [0, 2])
    state = state_of("collapsed", data, 0.0)
    how = dict(loss="logistic", clip=math.inf, prox_step=1.0, relaxation=0.5)
    kernels.prox_sweep(data, state, np.zeros(1), **how)
    t = state.scale * data.y
    np.testing.assert_allclose(t * 1e308, -np.log(t), rtol=1e-12)  # t = 1 / (1 + exp(1e308 t))


@pairwise("isa", "plain_layout")
def test_records_that_take_no_part_stay_as_they_are(make, layout):
    data = make(n=200, **layout)
    rows = np.array([0, 3, 4, 117, 199])
    others = np.setdiff1d(np.arange(200), rows)
    for kind in ("per_user", "public"):
        state, all_swept = state_of(kind, data), state_of(kind, data)
        before = copy(state)
        how = dict(loss="logistic", clip=1.0, prox_step=1.0, relaxation=0.25, grid=2.0**-30)
        result = kernels.prox_sweep(data, state, centers(data, 1)[0], rows=rows, **how)
        kernels.prox_sweep(data, all_swept, centers(data, 1)[0], **how)
        for a, b, c in zip(arrays(state), arrays(before), arrays(all_swept), strict=True):
            np.testing.assert_array_equal(a[others], b[others])
            np.testing.assert_array_equal(a[rows], c[rows])
        moved = (full(state, data) - full(before, data)).sum(axis=0)
        np.testing.assert_allclose(np.atleast_2d(result).sum(axis=0), moved, atol=1e-7)
        empty = kernels.prox_sweep(data, state, np.ones(data.d), rows=rows[:0], **how)
        assert not np.any(np.atleast_2d(empty))


@pairwise("isa", "plain_layout", kind=KINDS, n_threads=[1, 3])
def test_a_prepared_sweep_is_the_same_call_whatever_came_before(make, layout, kind, n_threads):
    """Bits, through changes of the relaxation and of who takes part, and after a refusal."""
    data = make(n=300, **layout)
    ours = state_of(kind, data)
    other = copy(ours)
    how = dict(loss="logistic", clip=0.3, prox_step=1.5, grid=2.0**-30, n_threads=n_threads)
    if kind == "public":
        how["sigma"] = 0.5
    prepared = kernels.PreparedSweep(data, ours, **how)
    some = None if kind == "collapsed" else np.array([3, 4, 117])
    turns = [(0.5, None), (0.5, None), (0.3, None), (0.5, some), (0.5, None)]
    streams = NoiseStream(8), NoiseStream(8)
    for z, (lam, chosen) in zip(centers(data, 5), turns, strict=True):
        for wrong in (dict(relaxation=1.5), dict(relaxation=lam, rows=np.array([2, 1]))):
            with pytest.raises(ValueError, match=r"relaxation must|rows"):
                prepared(z, **wrong)
        a = prepared(z, relaxation=lam, rows=chosen, rng=streams[0])
        b = kernels.prox_sweep(data, other, z, relaxation=lam, rows=chosen, rng=streams[1], **how)
        assert_identical(np.atleast_2d(a), np.atleast_2d(b))
        assert_identical(arrays(ours), arrays(other))


ROWS = rows(equal=1024, long=5000)


@for_each("kind", KINDS)
@for_each("flush", [0, FLUSH])
@pytest.mark.usefixtures("isa")
def test_one_record_never_sends_more_than_its_bound(
    kind, flush, bare_records, longer, control_bits
):
    """In rational arithmetic. A public state at 0 with lam = 1/2 and z = 0 becomes its message."""
    options = [{}, {"intercept": True}, {"intercept": True, "row_bound": 0.7}]
    bounds = ((1.0, 0.1), (math.pi, 2.0**200), (1e-9, 7.0))
    for name, y, (gamma, clip), some in itertools.product(
        ROWS, (-1.0, 1.0, 1e300), bounds, options
    ):
        data = bare_records(np.array([ROWS[name]]), np.array([y]), [0, 1], **some)
        lam = 0.5 if kind == "public" else 0.37
        how = dict(loss="squared", clip=clip, prox_step=gamma, relaxation=lam)
        bound = bound_of(kind, how)
        for grid in (finest_grid(1, bound), coarsest_grid(bound, data.d)):
            state = state_of(kind, data, 0.0)
            for _ in range(2):
                with control_bits(flush):
                    v = kernels.prox_sweep(data, state, np.zeros(data.d), grid=grid, **how)
                v = v[0] if kind == "per_user" else state.common[0] if kind == "public" else v
                assert not longer(v, grid, bound), name


@for_each("kind", KINDS)
@pytest.mark.usefixtures("isa")
def test_rounding_away_from_zero_stays_inside_the_bound(kind, bare_records, longer):
    for dim in (1, 4, 64, 1024):
        data = bare_records(np.ones((1, dim)), np.array([1e9]), [0, 1])
        for clip in np.linspace(1.0, 2.0, 31):
            how = dict(loss="squared", clip=clip, prox_step=1.1, relaxation=0.5)
            bound = bound_of(kind, how)
            grid, state = coarsest_grid(bound, dim), state_of(kind, data, 0.0)
            if kind == "per_user":  # from one end of the clipped scalars to the other
                state.scale[:] = -1.1 * clip / math.sqrt(dim)
            v = kernels.prox_sweep(data, state, np.zeros(dim), grid=grid, **how)
            v = v[0] if kind == "per_user" else v
            assert not longer(v, grid, bound)
            assert longer(v, grid, 0.9 * bound)


@for_each("flush", [0, FLUSH])
@pytest.mark.usefixtures("isa")
def test_a_clipped_change_is_never_longer_than_its_bound(flush, bare_records, longer, control_bits):
    """In rational arithmetic, from either end of the hidden states to the other and back."""
    reached = []
    for name, y, c, some in itertools.product(
        ROWS, (-1.0, 1.0, 1e300), (0.011, 1e-7, 2.0**150), [{}, {"row_bound": 0.7}]
    ):
        data = bare_records(np.array([ROWS[name]]), np.array([y]), [0, 1], **some)
        how = dict(loss="squared", clip=0.3, prox_step=0.9, relaxation=0.37)
        for grid in (finest_grid(1, c), coarsest_grid(c, data.d)):
            state = state_of("per_user", data, 0.0)
            for z in (0.0, 1e3, -1e3):
                with control_bits(flush):
                    v, _ = kernels.prox_sweep(
                        data, state, np.full(data.d, z), grid=grid, change_clip=c, **how
                    )
                assert not longer(v, grid, c), name
                reached.append(longer(v, grid, 0.9 * c))
    assert any(reached)


def test_what_the_clip_leaves_out_is_sent_later_and_no_fixed_point_moves(make):
    """At one z, changes add up to those of sweeps that clip nothing; at a fixed point both rest."""
    data = make(n=80)
    z, how = centers(data, 1)[0], dict(loss="logistic", clip=0.4, prox_step=2.0, relaxation=0.5)
    free, slow = state_of("per_user", data), state_of("per_user", data)
    sums = []
    for state, change_clip, sweeps in ((free, None, 300), (slow, 0.02, 700)):
        total = np.zeros(data.d)
        for _ in range(sweeps):
            S, P = kernels.prox_sweep(data, state, z, change_clip=change_clip, **how)
            total += S + P
        sums.append(total)
    np.testing.assert_allclose(*sums, rtol=1e-9, atol=1e-9)
    assert_same_states(free, slow, rtol=1e-9, atol=1e-9)
    rest = kernels.prox_sweep(data, copy(free), z, change_clip=1e-3, **how)[0]
    np.testing.assert_allclose(rest, 0.0, atol=1e-9)


@pairwise("isa", "convex", kind=KINDS)
def test_replacing_one_record_moves_a_sum_by_at_most_twice_the_bound(make, kind, loss, longer):
    """And no other record's state, over three sweeps at the same z."""
    for seed in range(4):
        data, other = make(n=70, p=6, seed=seed), make(n=70, p=6, seed=seed)
        other.X[33] = 10.0 ** (100 * seed - 150) * other.X[33][::-1]
        other.y[33] = -other.y[33]
        how = dict(loss=loss, clip=0.3, prox_step=2.0, relaxation=0.5, grid=2.0**-20)
        states = state_of(kind, data, 0.0), state_of(kind, other, 0.0)
        for z in centers(data, 3):
            sums = [
                kernels.prox_sweep(d, s, z, **how)
                for d, s in zip((data, other), states, strict=True)
            ]
            for a, b in zip(arrays(states[0]), arrays(states[1]), strict=True):
                if len(a) == 70:
                    np.testing.assert_array_equal(
                        np.delete(a, 33, axis=0), np.delete(b, 33, axis=0)
                    )
            if kind == "per_user":
                np.testing.assert_array_equal(sums[0][1], sums[1][1])
                sums = [S for S, _ in sums]
            if kind != "public":
                assert not longer(sums[0] - sums[1], 2.0**-20, 2 * bound_of(kind, how))


def test_a_state_is_hidden_within_its_bound(make):
    """|s_i a_i| <= gamma C at every sweep: what the sensitivity of a collapsed sum rests on."""
    data = make(n=100, p=6)
    state = state_of("collapsed", data)
    norms = np.linalg.norm(data.X, axis=1)
    for z in 10.0 * centers(data, 20):
        kernels.prox_sweep(data, state, z, loss="squared", clip=0.2, prox_step=3.0, relaxation=0.9)
        assert np.all(np.abs(state.scale) * norms <= 0.6)


@pairwise("isa", "plain_layout", kind=KINDS)
def test_no_bit_depends_on_threads_or_kept_norms(make, layout, kind):
    data = make(n=3000, p=40, **layout)
    results = []
    for n_threads, norms in ((1, False), (2, True), (7, False)):
        data.row_norms = kernels.glm_norms(data) if norms else None
        state, sums = state_of(kind, data), []
        how = dict(loss="logistic", clip=0.5, prox_step=2.0, relaxation=0.4, grid=2.0**-25)
        if kind == "public":
            how |= {"sigma": 0.3, "rng": 5}
        for z in centers(data, 2):
            sums.append(kernels.prox_sweep(data, state, z, n_threads=n_threads, **how))
        results.append([*sums, *arrays(state)])
    for again in results[1:]:
        assert_identical(again, results[0])


def noise_of(data, *, sigma=1.5, grid=2.0**-20, rng=3, **how):
    """What a message holds beside its noiseless self; exact at z = 0, u = 0 and lam = 1/2."""
    how = dict(loss="logistic", clip=1.0, prox_step=1.0, relaxation=0.5, grid=grid) | how
    silent, noisy = state_of("public", data, 0.0), state_of("public", data, 0.0)
    z = np.zeros(data.d)
    kernels.prox_sweep(data, silent, z, **how)
    kernels.prox_sweep(data, noisy, z, sigma=sigma, rng=rng, **how)
    return noisy.common - silent.common


@for_each("p", [1, 5, 64, 100, 300, 2048, 2500])
@pytest.mark.usefixtures("isa")
def test_noise_is_the_draws_of_the_records_own_numbers(make, p):
    """Each record is the silo of that number, under a purpose of its own; to the bit."""
    data = make(n=max(3, 130 // p), p=p, m=1)
    noise = noise_of(data)
    # A grid that leaves many draws open: their further bits lie at the record's own address too.
    for sigma, grid in ((1.5, 2.0**-20), (1.5, 2.0**-31)):
        noise = noise_of(data, sigma=sigma, grid=grid)
        draws = np.empty((data.n, p))
        with NoiseStream(3) as stream, stream.release() as release:
            _core.gaussian(
                release.key, Purpose.USER, np.full(data.n, sigma), np.full(data.n, grid), draws, 1
            )
        np.testing.assert_array_equal(noise, draws)


def test_noise_agrees_with_its_reference(make):
    data = make(n=6, p=5)
    rows = np.array([1, 2, 5])
    how = dict(loss="logistic", clip=1.0, prox_step=1.0, relaxation=0.5, grid=2.0**-20)
    how |= {"sigma": 0.7, "rng": 11, "rows": rows}
    ours, by_numpy = state_of("public", data, 0.0), state_of("public", data, 0.0)
    for sweep, state in ((kernels.prox_sweep, ours), (ref.prox_sweep, by_numpy)):
        sweep(data, state, np.zeros(5), **how)
    np.testing.assert_allclose(ours.common, by_numpy.common, atol=2.0**-19)
    assert np.all(ours.common[rows] != 0.0)


def test_noise_depends_on_the_record_and_not_on_who_else_takes_part(make):
    data = make(n=300, p=7)
    noise = noise_of(data)
    rows = np.array([2, 17, 18, 299])
    np.testing.assert_array_equal(noise_of(data, rows=rows)[rows], noise[rows])
    assert len(np.unique(noise)) > 0.99 * noise.size
    assert not np.any(noise_of(data, rows=rows)[0])


def test_noise_has_its_standard_deviation_and_lies_on_the_grid(make, steps):
    data = make(n=2000, p=50)
    noise = noise_of(data, sigma=0.7, grid=2.0**-12)
    steps(noise, 2.0**-12)
    assert abs(np.std(noise) / 0.7 - 1.0) < 5.0 / math.sqrt(2 * noise.size)
    assert abs(np.mean(noise)) < 5.0 * 0.7 / math.sqrt(noise.size)
    covariance = noise.T @ noise / (0.49 * len(noise)) - np.eye(50)
    assert np.max(np.abs(covariance)) < 6.0 * math.sqrt(2.0 / len(noise))


def test_a_sweep_takes_one_release_and_repeats_no_noise(make):
    data = make(n=20, p=5)
    with NoiseStream(3) as stream:
        first, second = noise_of(data, rng=stream), noise_of(data, rng=stream)
        assert stream.release().number == 2
    assert not np.any(first == second)
    np.testing.assert_array_equal(first, noise_of(data, rng=3))


def test_a_record_that_is_not_finite_sends_its_noise(make):
    """Written to after validation has seen it: its message must not show that."""
    data = make(n=70, p=5, m=1)
    noise = noise_of(data)
    for bad in (math.nan, math.inf):
        data.X[7, 2] = bad
        state = state_of("public", data, 0.0)
        how = dict(loss="logistic", clip=1.0, prox_step=1.0, relaxation=0.5, grid=2.0**-20)
        kernels.prox_sweep(data, state, np.zeros(5), sigma=1.5, rng=3, **how)
        np.testing.assert_array_equal(state.common[7], noise[7])
        for kind in ("collapsed", "per_user"):
            state = state_of(kind, data)
            for z in centers(data, 2):
                assert np.all(np.isfinite(kernels.prox_sweep(data, state, z, **how)))
            assert all(np.all(np.isfinite(a)) for a in arrays(state))


def test_z_may_be_part_of_the_state(make):
    data = make(n=50, p=5)
    how = dict(loss="logistic", clip=1.0, prox_step=1.0, relaxation=0.3)
    for kind in KINDS:
        ours, other = state_of(kind, data), state_of(kind, data)
        z = ours.common if kind == "collapsed" else ours.common[3]
        a = kernels.prox_sweep(data, ours, z, **how)
        b = kernels.prox_sweep(data, other, z * 0.0 + 0.1, **how)
        assert_identical(np.atleast_2d(a), np.atleast_2d(b))
        assert_identical(arrays(ours), arrays(other))


GOOD_PUBLIC = {"state": "public", "sigma": 1.0, "grid": 2.0**-20}
BAD = [
    ({"z": np.zeros(10)}, r"z must have shape \(11,\)"),
    ({"z": np.full(11, np.inf)}, "z must be finite"),
    ({"prox_step": math.inf}, "prox_step must .* got inf"),
    ({"prox_step": "1"}, "TypeError: prox_step must .* got '1'"),
    ({"prox_step": 1e-200, "clip": 1e-200}, "prox_step times clip must .* got 0.0"),
    ({"relaxation": 0.0}, "relaxation must .* got 0.0"),
    ({"relaxation": 1.1}, r"relaxation must .* got 1.1"),
    ({"relaxation": math.nan}, "relaxation must .* got nan"),
    ({"grid": 2.0**-3}, "grid must be at most"),
    ({"grid": [2.0**-20] * 2}, "grid must be a number"),
    ({"rows": np.arange(3)}, "rows must be None for a collapsed state"),
    ({"state": "public", "rows": np.arange(3, dtype=np.int32)}, "rows must be an int64"),
    ({"state": "public", "rows": [0, 1]}, "rows must be an int64"),
    ({"state": "public", "rows": np.array([1, 1])}, "rows must be dist"),
    ({"state": "per_user", "rows": np.array([2, 1])}, "rows must be dist"),
    ({"state": "per_user", "rows": np.array([-1, 1])}, "rows must be distinct"),
    (
        {"state": "per_user", "rows": np.array([1, 300])},
        "rows must be distinct and increasing in 0 .. 299",
    ),
    ({"sigma": 1.0}, "sigma must be None unless the state is public"),
    ({"state": "per_user", "sigma": 1.0}, "sigma must be None unless"),
    (GOOD_PUBLIC | {"sigma": -1.0}, "sigma must be finite"),
    (GOOD_PUBLIC | {"sigma": 1e9}, "sigma must be at most"),
    (GOOD_PUBLIC | {"sigma": [1.0] * 3}, "sigma must be a number"),
    (
        {"state": "public", "sigma": 1.0, "clip": math.inf},
        "sigma must be None where clip is infinite",
    ),
    ({"change_clip": 1.0}, "change_clip must be None unless"),
    ({"state": "public", "change_clip": 1.0}, "change_clip must be None unless"),
    ({"state": "per_user", "change_clip": 0.0}, "change_clip must be positive"),
    ({"state": "per_user", "change_clip": math.inf}, "change_clip must be .*finite"),
    ({"state": "per_user", "change_clip": 1e-310}, "change_clip must be at least"),
    (GOOD_PUBLIC | {"rng": -1}, "seed must be"),
    ({"state": None}, "TypeError: state must be a ProxState, got NoneType"),
    (
        {"state": ProxState(np.zeros((300, 11)), np.zeros(299))},
        r"state.scale must be .* shape \(300,\)",
    ),
    (
        {"state": ProxState(np.zeros((299, 11)), None)},
        r"state.common must be .* shape \(300, 11\), got",
    ),
    ({"state": ProxState(np.zeros(11), None)}, "state.common must be"),
    (
        {"state": ProxState(read_only(np.zeros((300, 11))), None)},
        "state.common must be .* writeable",
    ),
    ({"state": ProxState(np.zeros((300, 11), np.float32), None)}, "state.common must be a float64"),
]


@for_each(("change", "message"), BAD)
def test_bad_input_is_refused_by_name_and_leaves_the_state(make, change, message):
    data, good = make(), {"z": np.zeros(11), "loss": "logistic", "clip": 1.0, "relaxation": 0.5}
    how = {"state": "collapsed", "prox_step": 1.0} | good | change
    state = how.pop("state")
    state = state_of(state, data) if isinstance(state, str) else state
    before = copy(state) if isinstance(state, ProxState) else None
    assert_refused(message, kernels.prox_sweep, data, state, how.pop("z"), **how)
    if before is not None:
        assert_identical(arrays(state), arrays(before))


@for_each("start", [np.zeros(10), np.full(11, np.nan), "zeros"])
@for_each("kind", KINDS)
def test_a_bad_start_is_refused_by_name(make, kind, start):
    with pytest.raises((ValueError, TypeError), match="start must"):
        getattr(ProxState, kind)(make(), start)
