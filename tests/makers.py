"""Records, budgets and spies on what runs release, for many test files."""

import itertools
import math
import tracemalloc
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest

import dpkern as dpk
from dpkern import _core

FUSED = [name for name in _core.isa_names() if name != "base"]
BUDGET = dpk.Budget(epsilon=1.0, delta=1e-5)


def make_table(n, p, task="classification", *, seed=0, noise=0.5, labels=(-1.0, 1.0)):
    """Normal features, and the labels or targets of a linear model with noise."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    z = X @ rng.standard_normal(p) + noise * rng.standard_normal(n)
    return X, z if task == "regression" else np.where(z > 0.0, labels[1], labels[0])


def make_silos(sizes, p, task="classification", *, seed=0, noise=0.5, **options):
    """The records of `make_table` in silos of these sizes."""
    X, y = make_table(sum(sizes), p, task, seed=seed, noise=noise)
    return dpk.SiloData(X, y, np.cumsum([0, *sizes]), task=task, **options)


def options_of(data):
    """What records are mapped by, as arguments of `bare_records`."""
    return {k: getattr(data, k) for k in ("intercept", "row_bound", "scale", "shift")}


def beside(data, rows=slice(None)):
    """The weights and margin offsets of rows, as arguments of `bare_records`."""
    names = ("record_weight", "margin_offset")
    return {k: None if getattr(data, k) is None else getattr(data, k)[rows] for k in names}


class Logistic(dpk.Oracle):
    """What the logistic loss is, as a model of the user's own, in single precision or not."""

    name = "my logistic"

    def __init__(self, dtype=np.float64):
        self.dtype = dtype

    def dim(self, data):
        return data.n_features

    def gradients(self, w, X, y):
        return ((-y / (1.0 + np.exp(y * (X @ w))))[:, np.newaxis] * X).astype(self.dtype)

    def outputs(self, w, X):
        return X @ w


def square(x, y=0.0):
    """The squared norm of x - y, exactly."""
    pairs = np.broadcast_arrays(np.asarray(x, dtype=float), y)
    pairs = zip(*(np.ravel(v).tolist() for v in pairs), strict=True)
    return sum(((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs), Fraction(0))


def ratios(releases, silo):
    """D / s of every repetition that a record of the silo is charged for, by the definition.

    Of all that it has a part in; of a series, the dearest that it may have a part in.
    """
    found, series = [], {}
    for r in releases:
        D, s = (v[silo] if isinstance(v, tuple) else v for v in (r.sensitivity, r.std))
        ratio = Fraction(D) / Fraction(s) if D else Fraction(0)
        if r.series is None:
            found += [ratio] * min(r.times, r.per_record or r.times)
        else:
            series.setdefault((r.series, r.per_record), []).extend([ratio] * r.times)
    for (_, most), rounds in series.items():
        found += sorted(rounds, reverse=True)[:most]
    return [ratio for ratio in found if ratio]


def recomputed_mu(certificate, m):
    """mu by the definition: the largest over silos of what a record's releases cost."""
    costs = (Counter(ratios(certificate.releases, j)) for j in range(m))
    return math.sqrt(max(sum(n * ratio**2 for ratio, n in cost.items()) for cost in costs))


def spy_on(monkeypatch, *kinds):
    """The list of (mechanism, values, what was released) of every release of these mechanisms."""
    seen = []
    for kind in kinds:

        def spy(mechanism, values, release=kind.release, **how):
            released = release(mechanism, values, **how)
            seen.append((mechanism, values.copy(), released.copy()))
            return released

        monkeypatch.setattr(kind, "release", spy)
    return seen


def replay_releases(monkeypatch, *kinds):
    """Spy on every release: what it is of, its exact sum, its sensitivity and what was released.

    Where the second list has something, its entries are what is released.
    """
    made, replayed = [], []
    for kind in kinds:

        def spy(mechanism, total, release=kind.release, **more):
            released = release(mechanism, total, **more)
            made.append((mechanism._entry.what, np.array(total), mechanism.sensitivity, released))
            return replayed[len(made) - 1] if replayed else released

        monkeypatch.setattr(kind, "release", spy)
    return made, replayed


class Call(NamedTuple):
    """One call of a function: its arguments and what it returned."""

    given: tuple
    how: dict
    result: object


def spy_on_calls(monkeypatch, owner, name):
    """The list of all calls of a function or method."""
    calls, function = [], getattr(owner, name)

    def spy(*given, **how):
        calls.append(Call(given, how, function(*given, **how)))
        return calls[-1].result

    monkeypatch.setattr(owner, name, spy)
    return calls


def fail_at_call(monkeypatch, owner, name, number):
    """Let that call of a function, the first one being 1, raise MemoryError."""
    calls, function = itertools.count(1), getattr(owner, name)

    def fails(*given, **how):
        if next(calls) == number:
            raise MemoryError
        return function(*given, **how)

    monkeypatch.setattr(owner, name, fails)


def assert_same_on(names, compute, **tolerance):
    """What a kernel computes is the same on these instruction sets, to the bit or a tolerance."""
    if len(names) < 2:
        pytest.skip("this processor runs one such instruction set: no other to compare")
    before, results = _core.isa(), []
    try:
        for name in names:
            _core._use_isa(name)
            results.append([np.array(v) for v in compute()])
    finally:
        _core._use_isa(before)
    for result in results[1:]:
        for ours, first in zip(result, results[0], strict=True):
            if tolerance:
                np.testing.assert_allclose(ours, first, rtol=0.0, **tolerance)
            else:
                np.testing.assert_array_equal(ours, first)


def peak_memory(call, *given, **how):
    """What a call returns, and the most bytes that it had at once."""
    tracemalloc.start()
    try:
        result = call(*given, **how)
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def misaligned(array):
    """The same numbers, one byte off."""
    array = np.asarray(array)
    memory = np.empty(array.nbytes + array.itemsize, np.uint8)
    start = 1 - memory.ctypes.data % array.itemsize
    copy = memory[start if start > 0 else 1 :][: array.nbytes].view(array.dtype)
    copy = copy.reshape(array.shape)
    copy[...] = array
    assert not copy.flags.aligned
    return copy


def read_only(array):
    """A copy that cannot be written to."""
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def same(found, expected):
    """Whether models, histories and what was released are the same bits."""
    return (
        np.array_equal(found.coef, expected.coef)
        and found.intercept == expected.intercept
        and found.history == expected.history
        and found.privacy.releases == expected.privacy.releases
        and found.privacy.mu == expected.privacy.mu
    )


def transcript(result):
    """All of a result but its times, with the words of its certificate."""
    parts = {field: getattr(result, field) for field in result.__dataclass_fields__}
    del parts["timing"]
    privacy = replace(parts["privacy"], started=None)
    parts["privacy"] = str(privacy), privacy.to_dict()
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in parts.items()}


def assert_refused(message, call, *given, **how):
    """By a ValueError, or a TypeError where the message begins with its name; before any release.

    Returns what was said.
    """
    kind = TypeError if message.startswith("TypeError: ") else ValueError
    with pytest.raises(kind, match=message.removeprefix("TypeError: ")) as caught:
        call(*given, **how)
    assert not getattr(caught.value, "__notes__", [])
    return str(caught.value)
