"""Localized SGD: its formulas, and phases of which one alone depends on a record."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from cases import for_each
from makers import BUDGET, assert_refused, recomputed_mu

import dpkern as dpk
from dpkern.auditing.runs import Pair
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.privacy.sampling.record_sampling import Halves
from dpkern.solvers import Objective
from dpkern.transcript import Transcript

SIZES, CLIP = (9, 40, 61), 0.7
MU = BUDGET.mu


def silos(seed=0, sizes=SIZES, row_bound=2.0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((sum(sizes), 3))
    y = np.where(X @ [1.0, -1.0, 0.5] + rng.standard_normal(len(X)) > 0, 1.0, -1.0)
    return dpk.SiloData(X, y, np.cumsum([0, *sizes]), row_bound=row_bound)


def solve(data=None, **options):
    options = {"budget": BUDGET, "clip": CLIP, "rounds": 7, "phases": 3, "rng": 3} | options
    return dpk.solve("localized_sgd", silos() if data is None else data, **options)


@pytest.fixture
def sums(monkeypatch):
    """The exact sums of every release, whose bits are made the same whatever they are."""
    seen, release = [], GaussianSum.release

    def deaf(mechanism, total, **named):
        seen.append(np.array(total))
        released = release(mechanism, total, **named)
        return np.linspace(-1.0, 1.0, released.size).reshape(released.shape)

    monkeypatch.setattr(GaussianSum, "release", deaf)
    return seen


@pytest.fixture
def drawn(monkeypatch):
    """The records (silo, number) of every release, and the order is that of the records."""
    seen, draw = [], Halves.draw
    monkeypatch.setattr(Halves, "_order", lambda self, key, silo, size: np.arange(size))

    def spied(self, *given):
        rows, offsets = draw(self, *given)
        seen.append(np.split(rows, offsets[1:-1]))
        return rows, offsets

    monkeypatch.setattr(Halves, "draw", spied)
    return seen


# --------------------------------------------------------------------------------- the formulas


def by_loop(data, *, weights, added, trust, step_size, prox_step, l2, rounds):
    """The docstring's loop on logistic losses, a record at a time, in the order of the records.

    `added` is added to every released sum in the place of noise.
    """
    w = np.zeros(3)
    for i, T in enumerate(rounds):
        lam = 8.0**i / prox_step
        c, D = w, (CLIP + l2 * np.linalg.norm(w)) / lam
        x, v = c, c
        for t in range(1, T + 1):
            a, b = 2 / (t + 1), 4 * (1 / step_size + lam) / (t * (t + 1))
            u = (1 - a) * (lam + b) * v + a * ((1 - a) * lam + b) * x
            u = u / (b + (1 - a**2) * lam)
            g, of_one = l2 * u, []
            for p, (first, end) in zip(weights, pairwise(data.offsets), strict=True):
                n = end - first
                start = first + sum(n // 2**k for k in range(1, i + 1))
                stop = end if i == len(rounds) - 1 else start + n // 2 ** (i + 1)
                of_one.append(p / (stop - start))
                for z, y in zip(data.X[start:stop], data.y[start:stop], strict=True):
                    one = -y * z / (1 + math.exp(y * (z @ u)))
                    one *= min(1.0, CLIP / np.linalg.norm(one))
                    g = g + of_one[-1] * one
            g = g + added * (sum(of_one) if trust == "silo" else max(of_one))
            x = (a * lam * c + ((1 - a) * lam + b) * x - a * g) / (lam + b)
            x = c + (x - c) * min(1.0, D / max(np.linalg.norm(x - c), 1e-300))
            v = a * x + (1 - a) * v
        w = v
    return w


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("trust", ["central", "silo"])
@pytest.mark.parametrize(("prox_step", "added"), [(0.05, 50.0), (30.0, 0.0)])  # at the ball, within
@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_a_run_is_the_printed_loop(monkeypatch, trust, prox_step, added, weights):
    release = GaussianSum.release
    added = added * np.array([1.0, -0.5, 0.25])
    monkeypatch.setattr(GaussianSum, "release", lambda *of, **how: release(*of, **how) + added)
    data = silos(row_bound=math.inf)
    how = {"l2": 0.3, "step_size": 0.5, "prox_step": prox_step}
    found = solve(data, budget=None, trust=trust, weights=weights, **how)
    p = np.array(SIZES) / sum(SIZES) if weights == "size" else np.full(3, 1 / 3)
    how |= {"weights": p, "added": added, "trust": trust, "rounds": (2, 2, 3)}
    np.testing.assert_allclose(found.w, by_loop(data, **how), rtol=1e-12, atol=1e-14)
    assert found.n_rounds == 7


def test_one_long_phase_finds_the_minimum():
    data = silos()
    how = {"phases": 1, "rounds": 3000, "prox_step": 1e6, "l2": 0.05}
    found = solve(data, budget=None, clip=None, **how)
    objective = Objective(data, dpk.losses.Logistic(), l2=0.05)
    assert objective.value(found.w) - objective.minimum()[1] <= 1e-8


# ------------------------------------------------------------------------------- parts of records


def test_phases_share_the_records_and_every_round_of_one_has_all_of_its_own(drawn):
    solve(trust="silo")
    assert len(drawn) == 7
    phases = [drawn[0:2], drawn[2:4], drawn[4:7]]
    for rounds in phases:
        for later in rounds[1:]:
            assert all(map(np.array_equal, rounds[0], later))
    for j, n in enumerate(SIZES):
        parts = [rounds[0][j] for rounds in phases]
        assert [len(part) for part in parts] == [n // 2, n // 4, n - n // 2 - n // 4]
        records = np.sort(np.concatenate(parts))
        np.testing.assert_array_equal(records, np.arange(n) + sum(SIZES[:j]))


@pytest.mark.parametrize("trust", ["central", "silo"])
def test_a_replaced_record_changes_the_sums_of_one_phase_by_twice_the_clip_norm(sums, trust):
    data, phases = silos(), Counter()
    for j, first in enumerate(data.offsets[:-1]):
        for i in range(first, data.offsets[j + 1], 3):
            runs = []
            for sign in (1.0, -1.0):
                X, y = data.X.copy(), np.array(data.y)
                X[i], y[i] = (2.0, 0.0, 0.0), sign
                sums.clear()
                solve(dpk.SiloData(X, y, data.offsets, row_bound=2.0), trust=trust)
                runs.append([np.atleast_2d(total) for total in sums])
            moved = [a - b for a, b in zip(*runs, strict=True)]
            changed = [t for t, D in enumerate(moved) if D.any()]
            assert changed in ([0, 1], [2, 3], [4, 5, 6])
            for t in changed:
                silos_moved = np.flatnonzero(moved[t].any(axis=1)).tolist()
                assert silos_moved == ([j] if trust == "silo" else [0])
                assert np.linalg.norm(moved[t]) <= 2.0 * CLIP
            phases[changed[0]] += 1
    assert set(phases) == {0, 2, 4}  # the order is not that of the file


def test_the_order_does_not_depend_on_the_records(monkeypatch):
    orders, order = [], Halves._order

    def spied(self, *given):
        orders.append(order(self, *given).tolist())
        return order(self, *given)

    monkeypatch.setattr(Halves, "_order", spied)
    solve(silos(0), trust="silo")
    first = list(orders)
    orders.clear()
    solve(silos(1), trust="silo")
    assert orders == first
    assert first[0] != sorted(first[0])


# -------------------------------------------------------------------------------- noise and cost


@for_each("trust", ["central", "silo"])
@for_each("how", [{}, {"phases": 1}, {"participation": 2}, {"rounds": 6}], ids=str)
def test_phases_compose_in_parallel_and_their_rounds_in_sequence(trust, how):
    certificate = solve(trust=trust, **how).privacy
    given = {"rounds": 7, "phases": 3} | how
    longest = -(-given["rounds"] // given["phases"])
    assert {r.per_record for r in certificate.releases} <= {*range(1, longest + 1)}
    for release in certificate.releases:
        std = np.max(release.std)
        assert std <= 2.0 * CLIP * math.sqrt(longest) / MU * (1.0 + 1e-9)
    if how != {"participation": 2}:  # whose silos are absent from some rounds of a phase
        assert std == pytest.approx(2.0 * CLIP * math.sqrt(longest) / MU)
        assert certificate.mu == pytest.approx(MU)
    assert certificate.mu <= MU * (1.0 + 1e-12)
    assert certificate.mu == pytest.approx(recomputed_mu(certificate, 3), rel=1e-12)
    assert dpk.verify(certificate.to_dict()).ok


@for_each("trust", ["central", "silo"])
def test_an_audit_of_phases_stays_below_the_certificate_and_near_it(trust):
    """A replaced record among 20, in whichever phase it is: both have three rounds."""
    X = np.zeros((20, 1))
    inside, outside = X.copy(), X.copy()
    inside[4], outside[4] = 1.0, -1.0
    pair = []
    for rows in (inside, outside):
        offsets = np.array([0, 10, 20])
        pair.append(dpk.SiloData(rows, np.ones(20), offsets, row_bound=1.0, task="regression"))
    how = {"budget": BUDGET, "clip": 0.5, "rounds": 6, "phases": 2, "trust": trust}
    how |= {"loss": "squared", "step_size": 1e-6, "prox_step": 1e-6}
    pair = Pair(*pair, "localized_sgd", how)
    certificate, last = pair.certificate()
    pair.transcript(True, 1, Transcript(last=last))
    assert 0.97 * certificate.mu <= pair.separation() <= certificate.mu


# --------------------------------------------------------------------------------------- refusals


@for_each(
    ("options", "message"),
    [
        ({"phases": 5}, "phases must be at most 4, the smallest silo having 9 records, got 5"),
        ({"rounds": 2}, "rounds must be at least the 3 phases, got 2"),
        ({"phases": 0}, "phases must be at least 1"),
        ({"prox_step": 0.0}, "prox_step must be positive"),
        ({"participation": 4}, "participation must be at most the 3 silos, got 4"),
        ({"l1": 0.1}, "l1 must be absent in localized_sgd, which takes l2 alone"),
        ({"trust": "shuffle"}, "trust must be 'central' or 'silo'"),
        ({"neighbours": "add_remove", "public_size": 10}, "neighbours must be 'replace_one'"),
        ({"calibration": "paper"}, "calibration must be 'sound'"),
    ],
)
def test_bad_calls_are_refused_by_name(options, message):
    assert_refused(message, solve, **options)


def test_fewer_rounds_or_records_than_phases_by_default_make_one():
    assert solve(phases="auto", rounds=1).privacy.declared["phases"] == 1
    assert solve(silos(sizes=(1, 30)), phases="auto").privacy.declared["phases"] == 1
    assert solve(phases="auto").privacy.declared["phases"] == 2
