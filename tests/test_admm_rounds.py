"""Compiled rounds of ADMM: the kernel, its reference, and the loop of rounds."""

import itertools
import math

import numpy as np
import pytest
import scipy.sparse
from cases import for_each
from makers import BUDGET

import dpkern as dpk
from dpkern import _core, kernels
from dpkern import reference as ref
from dpkern.kernels import ProxState
from dpkern.models.penalties import L1, PL, ElasticNet, GroupLasso, L2Ball, Simplex
from dpkern.privacy import NoiseStream
from dpkern.privacy.certificate.ledger import Ledger

N, D, GRID = 70, 9, 2.0**-30
ROUNDS = 5
LAYOUTS = [
    {"intercept": True},
    {"csr": True, "intercept": True, "row_bound": 1.5},
    {"dtype": np.float32, "affine": True},
    {"n": 200, "p": 1100},  # more than one task
]
OPTIONS = [
    {},
    {"l2": 0.3, "l1": 0.02, "penalize_intercept": False},
    {"sigma": 0.7, "l1": 0.05},
    {"sigma": 0.5, "penalty": L2Ball(0.3), "l2": 0.1},
    {"sigma": 0.0, "penalty": Simplex(), "loss": dpk.losses.SmoothedHinge(h=0.5)},
    {"l1": 0.02, "penalty": PL(0.1), "loss": "squared"},
    {"clip": math.inf, "grid": None, "penalty": ElasticNet(0.1, l1_ratio=0.3)},
]


def how(**options):
    some = {"loss": "logistic", "clip": 0.7, "prox_step": 1.5, "relaxation": 0.4, "grid": GRID}
    return some | {"rng": 5} | options


def state_of(kind, data, start=0.1):
    return getattr(ProxState, kind)(data, np.full(data.d, start))


def arrays(state):
    return [a for a in (state.common, state.scale) if a is not None]


def participants(data, *, each):
    """A few users in every round, and none in one."""
    rng = np.random.default_rng(1)
    sizes = [each, 0, 1, each + 2, 2][:ROUNDS]
    chosen = [np.sort(rng.choice(data.n, k, replace=False)) for k in sizes]
    return np.concatenate(chosen), np.cumsum([0, *sizes])


def by_rounds(
    data, state, zhat, *, rounds, l2=0.0, l1=0.0, penalty=None, penalize_intercept=True,
    sigma=None, rows=None, rng, **how,
):  # fmt: skip
    """The rounds one by one, by the kernels of which they consist."""
    stream, points = NoiseStream(rng), []
    p = data.d - (data.intercept and not penalize_intercept)
    shrink = 1.0 + how["prox_step"] * l2
    for t in range(rounds):
        z = np.append(zhat[:p] / shrink, zhat[p:])
        for term in (L1(l1) if l1 else None, penalty):
            if term is not None:
                z[:p] = kernels.prox(term, z[:p], how["prox_step"] / shrink)
        own = None if rows is None else rows[0][rows[1][t] : rows[1][t + 1]]
        if state.scale is None:
            moved = kernels.prox_sweep(data, state, z, sigma=sigma, rows=own, rng=stream, **how)
            zhat = zhat + moved / data.n
        else:
            S, *public = np.atleast_2d(kernels.prox_sweep(data, state, z, rows=own, **how))
            if sigma is not None:
                S = S + kernels.gaussian(data.d, sigma, grid=how["grid"], rng=stream)
            zhat = zhat + (public[0] + S) / data.n if public else state.common + S / data.n
        points.append(zhat)
    return np.array(points)


def cases(data):
    """Every kind of state with every option, and some or all users in a round."""
    for kind, options in itertools.product(("collapsed", "per_user", "public"), OPTIONS):
        for each in (None,) if kind == "collapsed" else (None, 2 * data.n // 5):
            given = how(**options, rounds=ROUNDS)
            if each is not None:
                given["rows"] = participants(data, each=each)
            yield kind, given
    yield "per_user", how(rounds=ROUNDS, sigma=0.3, change_clip=0.05)


def test_bits_are_those_of_the_kernels_round_by_round_and_the_twin_agrees(make, isa):
    """For any number of threads and every kind of rows."""
    for layout in LAYOUTS:
        data = make(**({"n": N, "p": D} | layout))
        start = np.random.default_rng(0).normal(0.0, 0.3, data.d)
        for kind, given in cases(data):
            expected = state_of(kind, data)
            points = by_rounds(data, expected, start, **given)
            for n_threads in (1, 3):
                ours = state_of(kind, data)
                found = kernels.admm_rounds(data, ours, start, n_threads=n_threads, **given)
                np.testing.assert_array_equal(found, points)
                for a, b in zip(arrays(ours), arrays(expected), strict=True):
                    np.testing.assert_array_equal(a, b)
            if isa == _core.isa_names()[0] and data.d < 100:
                by_numpy = state_of(kind, data)
                # A rounding of t may move a vector by a step of the grid.
                near = {"rtol": 1e-9, "atol": 8 * ROUNDS * GRID}
                np.testing.assert_allclose(
                    points, ref.admm_rounds(data, by_numpy, start, **given), **near
                )
                for a, b in zip(arrays(by_numpy), arrays(expected), strict=True):
                    np.testing.assert_allclose(a, b, **near)


def test_every_round_has_a_release_of_its_own_and_none_is_used_again(make):
    data = make(n=N, p=3)
    for kind in ("collapsed", "per_user", "public"):
        whole, parts, stream = state_of(kind, data), state_of(kind, data), NoiseStream(5)
        given = how(sigma=0.5)
        expected = kernels.admm_rounds(data, whole, np.zeros(3), rounds=5, **given)
        given["rng"] = stream
        first = kernels.admm_rounds(data, parts, np.zeros(3), rounds=2, **given)
        rest = kernels.admm_rounds(data, parts, first[-1], rounds=3, **given)
        np.testing.assert_array_equal(np.concatenate([first, rest]), expected)
        # What a failed call has taken is gone.
        other = NoiseStream(5)
        other.releases(5 + 2)
        given["relaxation"] = 1.0
        with pytest.raises(ValueError, match="zhat must be finite"):
            kernels.admm_rounds(
                data, state_of(kind, data, -1e308), np.full(3, 1.7e308), rounds=2, **given
            )
        one, another = (kernels.gaussian(3, 2.0, grid=GRID, rng=s) for s in (stream, other))
        np.testing.assert_array_equal(one, another)


def test_bad_arguments_are_refused_by_name_before_a_state_or_a_stream_moves(make):
    data, two = make(n=N, p=3), np.array([0, 1, 2])
    for kind, bad, message in (
        ("collapsed", {"zhat": [0.0, np.nan, 0.0]}, "zhat must be finite"),
        ("collapsed", {"zhat": np.zeros(4)}, r"zhat must have shape \(3,\)"),
        ("collapsed", {"rounds": 0}, "rounds must be at least 1"),
        ("collapsed", {"relaxation": 1.5}, r"relaxation must be in \(0, 1\]"),
        ("collapsed", {"l2": -1.0}, "l2 must be"),
        ("collapsed", {"l1": -1.0}, "l1 must be"),
        ("collapsed", {"penalty": PL(3.0)}, "prox_step times the strength of prox"),
        ("collapsed", {"penalty": GroupLasso(groups=[2])}, "must have 2 coordinates"),
        ("collapsed", {"penalty": "l7"}, "penalty must be one of"),
        ("collapsed", {"penalize_intercept": 1}, "penalize_intercept must be"),
        ("collapsed", {"sigma": -1.0}, "sigma must be"),
        ("per_user", {"sigma": 1.0, "clip": math.inf, "grid": None}, "sigma must be None"),
        ("public", {"sigma": 1.0, "clip": math.inf, "grid": None}, "sigma must be None"),
        ("collapsed", {"grid": 2.0**-60}, "grid must be at least"),
        ("collapsed", {"rows": (two[:2], two)}, "rows must be None for a collapsed state"),
        ("public", {"rows": two}, "rows must be a pair"),
        ("public", {"rows": (two.astype(np.int32), two)}, r"rows\[0\] must be int64"),
        ("public", {"rows": (two[:2], two[:2])}, r"rows\[1\] must"),
        ("public", {"rows": (two[:2], np.array([0, 2, 1]))}, r"rows\[1\] must"),
        (
            "public",
            {"rows": (np.array([5, 5]), np.array([0, 2, 2]))},
            r"rows\[0\] must be distinct",
        ),
        (
            "public",
            {"rows": (np.array([5, 4]), np.array([0, 0, 2]))},
            r"rows\[0\] must be distinct",
        ),
        ("public", {"rows": (np.array([5, N]), two)}, r"rows\[0\] must be distinct"),
        ("per_user", {"rows": (np.array([-1, 4]), two)}, r"rows\[0\] must be distinct"),
    ):
        stream, state = NoiseStream(1), state_of(kind, data)
        given = {"zhat": np.zeros(3), "rounds": 2} | how(rng=stream, sigma=0.5) | bad
        with pytest.raises((TypeError, ValueError), match=message):
            kernels.admm_rounds(data, state, given.pop("zhat"), **given)
        assert stream.release().number == 0
        assert (state.common == 0.1).all()
    with pytest.raises(ValueError, match="sigma must be None for a public state"):
        kernels.PreparedSweep(
            data, state_of("public", data), loss="squared", clip=1.0, prox_step=1.0
        ).rounds(np.zeros(3), rounds=1, relaxation=0.5, sigma=1.0)


RING = scipy.sparse.diags_array([1.0] * 4, offsets=[-1, 1, 89, -89], shape=(90, 90))
MODES = [
    {},
    {"trust": "local"},
    {"mode": "federated", "participation": 7},
    {"mode": "federated", "participation": 40, "max_participations": 3},
    {"mode": "federated", "participation": 7, "trust": "local"},
    {"mode": "token", "trust": "local", "max_participations": 1},
    {"mode": "token", "trust": "local", "graph": RING},
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@for_each("mode", MODES, ids=str)
def test_rounds_run_compiled_and_charges_come_before_what_they_pay_for(monkeypatch, mode):
    rng, calls, charges, charge = np.random.default_rng(0), [], [], Ledger.append
    X = rng.standard_normal((90, 4))
    y = np.where(X[:, 0] + 0.3 * rng.standard_normal(90) > 0.0, "a", "b")
    data = dpk.SiloData(X, y, [0, 11, 50, 90], row_bound=2.0, intercept=True)
    rounds = kernels.PreparedSweep.rounds

    def spy(sweep, zhat, **given):
        calls.append(given["rounds"])
        assert sum(charges) == sum(calls)
        return rounds(sweep, zhat, **given)

    def charged(ledger, release, repetitions=1):
        charges.append(repetitions)
        charge(ledger, release, repetitions)

    monkeypatch.setattr(kernels.PreparedSweep, "rounds", spy)
    monkeypatch.setattr("dpkern.solvers.base.run._CHUNK_NUMBERS", 80)  # 16 rounds
    monkeypatch.setattr(Ledger, "append", charged)
    compiled = dpk.solve("admm", data, budget=BUDGET, clip=0.7, rounds=40, rng=0, **mode)
    assert max(calls) == 16
    assert sum(calls) == len(compiled.history["gradient_norm"])
    calls.clear()
    dpk.solve("admm", data, users="silos", budget=None, rounds=3)
    assert not calls
