"""Samplers of records: their distributions, and that nothing tells what they drew."""

import itertools
import json
import math
import re
from functools import partial

import numpy as np
import pytest
import scipy.stats
from cases import for_each

import dpkern as dpk
from dpkern.privacy import NoiseStream
from dpkern.privacy.sampling.record_sampling import Cyclic, FullBatch, Poisson, WithoutReplacement
from dpkern.solvers.releases import means

BUDGET = dpk.Budget(epsilon=2.0, delta=1e-6)


def drawn(sampler, sizes, t=0, active=None, seed=0, stream=None):
    offsets = np.cumsum([0, *sizes])
    active = np.ones(len(sizes), dtype=bool) if active is None else np.array(active)
    rows, ends = sampler.draw(stream or NoiseStream(seed), offsets, t, active)
    assert rows.dtype == np.int64
    batches = [rows[a:b] - start for a, b, start in zip(ends, ends[1:], offsets, strict=False)]
    for batch, n in zip(batches, sizes, strict=True):
        assert np.all(np.diff(batch) > 0)
        assert np.all((batch >= 0) & (batch < n))
    return batches


@pytest.mark.statistical
@pytest.mark.parametrize(("n", "k"), [(5, 2), (5, 3), (6, 1), (6, 5)])
def test_every_set_of_k_records_is_equally_likely(n, k):
    sets = {s: i for i, s in enumerate(itertools.combinations(range(n), k))}
    seen = np.zeros(len(sets))
    stream = NoiseStream(7)
    for _ in range(400):
        with stream.release() as key:
            drawn, _ = key.subsets(np.arange(11) * n, np.full(10, k))
        for row in (drawn.reshape(10, k) % n).tolist():
            seen[sets[tuple(row)]] += 1
    assert scipy.stats.chisquare(seen).pvalue > 1e-4


def test_a_batch_has_its_size_whatever_the_words_are():
    for n, k in ((1, 1), (2, 1), (7, 7), (1000, 999), (1000, 500), (1000, 501), (3, 2)):
        with NoiseStream(1).release() as key:
            found, _ = key.subsets(np.array([0, n]), np.array([k]))
        assert len(np.unique(found)) == k
        assert found.min() >= 0
        assert found.max() < n


def test_batches_of_fixed_size_are_of_the_silos_that_take_part():
    sampler = WithoutReplacement((6, 9, 4), (3, 3, 3))
    stream = NoiseStream(3)
    first = drawn(sampler, (6, 9, 4), stream=stream)
    second = drawn(sampler, (6, 9, 4), stream=stream, active=[True, False, True])
    assert [len(b) for b in first] == [3, 3, 3]
    assert [len(b) for b in second] == [3, 0, 3]
    assert first[0].tolist() != second[0].tolist() or first[2].tolist() != second[2].tolist()
    assert not np.array_equal(*drawn(WithoutReplacement((50, 50), (9, 9)), (50, 50)))


@pytest.mark.statistical
def test_poisson_batches_have_the_rate_of_the_public_size_and_independent_records():
    rounds, n, public, k = 3000, 4, 10, 3
    sampler, stream = Poisson((public,), (k,)), NoiseStream(5)
    inside = np.zeros((rounds, n), dtype=bool)
    for t in range(rounds):
        inside[t, drawn(sampler, (n,), stream=stream)[0]] = True
    codes = np.bincount(inside @ (1 << np.arange(n)), minlength=1 << n)
    law = [
        math.prod(k / public if code >> i & 1 else 1.0 - k / public for i in range(n))
        for code in range(1 << n)
    ]
    assert scipy.stats.chisquare(codes, rounds * np.array(law)).pvalue > 1e-4


@pytest.mark.statistical
@pytest.mark.parametrize("make", [Poisson, WithoutReplacement, partial(Cyclic, releases=200)])
def test_silos_draw_independently_of_one_another(make):
    """Whether a record is in the batch says nothing on the record of the same place elsewhere."""
    n, k, rounds = 60, 30, 200
    inside = np.zeros((rounds, 2, n))
    stream = NoiseStream(11)
    for t in range(rounds):
        for j, batch in enumerate(drawn(make((n, n), (k, k)), (n, n), stream=stream)):
            inside[t, j, batch] = 1.0
    correlation = np.mean((2.0 * inside[:, 0] - 1.0) * (2.0 * inside[:, 1] - 1.0))
    assert abs(correlation) < 6.0 / math.sqrt(n * rounds)


def test_a_poisson_record_is_never_more_likely_than_the_accountant_thinks():
    for k, n in ((1, 3), (2, 3), (1, 7), (10**6, 10**6 + 1)):
        threshold = (k << 64) // n
        assert threshold * n <= k << 64
        assert threshold / 2**64 <= math.nextafter(k / n, 1.0)
    everything = Poisson((8,), (8,))
    assert drawn(everything, (11,))[0].tolist() == list(range(11))


@pytest.mark.statistical
def test_a_record_is_in_at_most_one_batch_of_a_pass_and_orders_are_random():
    sizes, k, rounds = (10, 25), 5, 2
    firsts = []
    for seed in range(300):
        sampler, stream = Cyclic(sizes, (k, k), releases=rounds), NoiseStream(seed)
        batches = [drawn(sampler, sizes, t, stream=stream) for t in range(rounds)]
        for j in range(2):
            parts = [b[j] for b in batches]
            assert all(len(part) == k for part in parts)
            assert len(np.unique(np.concatenate(parts))) == k * rounds
        firsts.append(batches[0][0])
    seen = np.bincount(np.concatenate(firsts), minlength=10)
    assert scipy.stats.chisquare(seen).pvalue > 1e-4


@for_each("T", [1, 2, 5, 6, 13])
@for_each("k", [1, 4, 7, 10])
def test_a_record_comes_up_as_often_as_a_cyclic_sampler_says_and_not_more(k, T):
    sizes = (10, 25)
    sampler, stream = Cyclic(sizes, (k, k), releases=T), NoiseStream(T)
    times = [np.zeros(n, dtype=int) for n in sizes]
    for t in range(T):
        for count, batch in zip(times, drawn(sampler, sizes, t, stream=stream), strict=True):
            assert len(batch) == k
            count[batch] += 1  # distinct, as `drawn` has seen
    for count, n in zip(times, sizes, strict=True):
        assert count.max() - count.min() <= 1
        assert count.max() == -(-T * k // n)
    assert sampler.per_record == max(c.max() for c in times)
    assert sampler.sampling is None
    assert not sampler.amplifies


def test_consecutive_batches_are_those_of_one_release_after_the_other():
    sizes, k = (10, 25), 4
    offsets, everybody = np.array([0, 10, 35]), np.ones(2, dtype=bool)
    one, stream = Cyclic(sizes, (k, k), releases=9), NoiseStream(3)
    singles = [one.draw(stream, offsets, t, everybody)[0].reshape(2, k) for t in range(9)]
    other, stream = Cyclic(sizes, (k, k), releases=9), NoiseStream(3)
    together = [other.consecutive(stream, offsets, t, n) for t, n in ((0, 4), (4, 5))]
    np.testing.assert_array_equal(np.concatenate(together, axis=1), np.stack(singles, axis=1))
    assert together[0].dtype == np.int64


def test_no_batch_is_drawn_beyond_those_that_are_charged():
    sampler, stream, offsets = Cyclic((6,), (2,), releases=3), NoiseStream(0), np.array([0, 6])
    with pytest.raises(ValueError, match="releases must be at most the 3 charged"):
        sampler.draw(stream, offsets, 3, np.ones(1, dtype=bool))
    with pytest.raises(ValueError, match="releases must be at most the 3 charged"):
        sampler.consecutive(stream, offsets, 2, 2)


def test_a_silo_that_was_silent_keeps_its_place_in_the_pass():
    sampler, stream = Cyclic((6,), (2,), releases=3), NoiseStream(0)
    assert drawn(sampler, (6,), 0, [False], stream=stream)[0].size == 0
    later = [drawn(sampler, (6,), t, [True], stream=stream)[0] for t in (1, 2)]
    assert len(np.unique(np.concatenate(later))) == 4


def test_full_batches_are_all_records_of_the_active_silos():
    sampler = FullBatch((3, 2), (3, 2))
    assert sampler.draw(NoiseStream(0), np.array([0, 3, 5]), 0, np.array([True, True])) is None
    assert [b.tolist() for b in drawn(sampler, (3, 2), active=[False, True])] == [[], [0, 1]]


def test_samples_noise_and_schedules_never_share_words_of_the_stream(monkeypatch):
    """Every release key serves one purpose, and every silo has words of its own in it."""
    from dpkern.stream import Purpose, ReleaseKey

    used, words, subsets = set(), ReleaseKey.words, ReleaseKey.subsets

    def spy(key, purpose, count, index=0):
        used.add((key.number, "words", purpose))
        return words(key, purpose, count, index)

    def spy_on_subsets(key, *sizes):
        assert (key.number, "subsets", Purpose.SAMPLING) not in used
        used.add((key.number, "subsets", Purpose.SAMPLING))
        return subsets(key, *sizes)

    monkeypatch.setattr(ReleaseKey, "words", spy)
    monkeypatch.setattr(ReleaseKey, "subsets", spy_on_subsets)
    release, numbers = NoiseStream.release, []

    def counted(stream):
        key = release(stream)
        numbers.append(key.number)
        return key

    monkeypatch.setattr(NoiseStream, "release", counted)
    dpk.solve("spider", silos((30, 40)), budget=None, rounds=4, sampling="without_replacement",
              batch_size=20, participation=1, returns="random", step_size=0.1)  # fmt: skip
    assert numbers == list(range(len(numbers)))
    assert len(used) == len({number for number, _, _ in used})
    assert {kind for _, kind, _ in used} == {"words", "subsets"}


def silos(sizes, seed=0):
    rng = np.random.default_rng(seed)
    parts = [(rng.standard_normal((n, 3)), np.resize([-1.0, 1.0], n)) for n in sizes]
    return dpk.SiloData.from_silos(parts, row_bound=2.0)


def numbers_in(value):
    if isinstance(value, dict):
        return [x for v in value.values() for x in numbers_in(v)]
    if isinstance(value, list | tuple):
        return [x for v in value for x in numbers_in(v)]
    return [value]


def test_no_result_holds_a_batch_or_its_size(monkeypatch, tmp_path):
    """True sizes and batch sizes are numbers that occur nowhere else."""
    seen, release = [], means.NoisyMeans._release

    async def spy(means, *args, **more):
        draw = type(means._family.sampler).draw

        def kept(sampler, *given):
            rows = draw(sampler, *given)
            seen.extend(np.diff(rows[1]).tolist())
            return rows

        with monkeypatch.context() as patch:
            patch.setattr(type(means._family.sampler), "draw", kept)
            return await release(means, *args, **more)

    monkeypatch.setattr(means.NoisyMeans, "_release", spy)
    released = []
    result = dpk.solve(
        "minibatch_sgd", silos((701, 811)), budget=BUDGET, clip=1.0, rounds=3, batch_size=300,
        sampling="poisson", neighbours="add_remove", public_size=(1000, 1000),
        callback=lambda t, entry: released.append(entry.to_dict()),
    )  # fmt: skip
    secret = set(seen) | {701, 811, 701 + 811}
    assert len(seen) == 6
    assert min(seen) > 150
    result.save(tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz") as file:
        for name in file.files:
            # Not the digits within a digest, which may be any.
            numbers = re.findall(r"(?<![\w.])\d+(?![\w.])", str(file[name]))
            assert name != "header" or {"300", "1000"} <= set(numbers)
            assert not secret & set(map(int, numbers))
    said = [result.privacy.to_dict(), released, result.history, result.parameters]
    assert not secret & {x for x in numbers_in(said) if isinstance(x, int)}
    json.dumps(result.privacy.to_dict())


def test_an_error_of_a_users_model_does_not_tell_how_many_records_there_were():
    class Wrong(dpk.Oracle):
        name = "wrong"

        def dim(self, data):
            return 3

        def gradients(self, w, X, y):
            return np.zeros((len(y) + 1, 2))

    with pytest.raises(ValueError, match="'wrong' must have one row per record") as error:
        dpk.solve(
            "minibatch_sgd", silos((701, 811)), model=Wrong(), budget=BUDGET, clip=1.0, rounds=3,
            batch_size=300, sampling="poisson", neighbours="add_remove", step_size=0.1,
            public_size=(1000, 1000),
        )  # fmt: skip
    digits = "".join(c if c.isdigit() else " " for c in str(error.value)).split()
    assert {int(n) for n in digits} <= {2, 3}


def test_many_empty_batches_are_a_run_like_any_other():
    result = dpk.solve(
        "minibatch_sgd", silos((5, 6)), budget=BUDGET, clip=1.0, rounds=6, batch_size=1,
        sampling="poisson", neighbours="add_remove", public_size=(1000, 1000), rng=0,
    )  # fmt: skip
    assert result.privacy.releases[0].times == 6
    assert np.all(np.isfinite(result.w))


def test_public_numbers_in_the_place_of_sizes_bound_no_silo():
    """What a silo as a whole pays needs its true size, which add_remove hides."""
    options = {"budget": BUDGET, "clip": 1.0, "rounds": 2}
    known = dpk.solve("minibatch_sgd", silos((5, 6)), **options).privacy
    assert known.user_level().mu >= 6.0 * known.mu
    hidden = dpk.solve(
        "minibatch_sgd", silos((5, 6)), neighbours="add_remove", public_size=(2, 2), **options
    ).privacy
    with pytest.raises(ValueError, match="the declared sizes bound no"):
        hidden.user_level()
