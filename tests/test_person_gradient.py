"""Sums in which a person's records are clipped together: reference, exact clip bound, threads."""

import math
from fractions import Fraction

import numpy as np
import pytest
from adversarial import ROW_OPTIONS, anywhere, coarsest_grid, random_cases, rows
from cases import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from dpkern import kernels
from dpkern import reference as ref
from dpkern.kernels.persons import glm_person_gradient

LAYOUTS = {
    "dense": {},
    "float32": {"dtype": np.float32, "p": 70},
    "wide": {"p": 1100},
    "affine": {"affine": True, "intercept": True},
    "bounded": {"row_bound": 1.0, "intercept": True},
    "csr": {"csr": True, "intercept": True},
    "csr, affine": {"csr": True, "affine": True},
    "csr, float32": {"csr": True, "dtype": np.float32, "p": 40, "row_bound": 1.5},
}


def people(data, seed=0, most=7):
    """Random persons of 1 .. most records, and one of many, within silos."""
    rng = np.random.default_rng(seed)
    bounds = [0]
    for end in data.offsets[1:].tolist():
        while bounds[-1] < end:
            size = int(rng.integers(1, most + 1)) if rng.random() < 0.95 else 100
            bounds.append(min(bounds[-1] + size, end))
    return np.array(bounds)


@pytest.mark.usefixtures("isa")
@for_each("layout", LAYOUTS)
@for_each("person_clip", [0.3, 1.0, 2.0, 500.0])
def test_sums_agree_with_their_twin_for_any_threads(make, layout, person_clip):
    data = make(n=1500, **LAYOUTS[layout])
    w = 0.5 * np.random.default_rng(1).standard_normal((data.m, data.d))
    weight, persons = np.array([1.0, 0.5, 0.25, 1.0]), people(data)
    grid = 2.0 ** -np.array([20.0, 24.0, 28.0, 20.0])
    how = {"clip": 0.5, "persons": persons, "person_clip": person_clip, "silo_weight": weight}
    by_numpy = ref.glm_person_gradient(data, w, grid=grid, **how)
    found = [glm_person_gradient(data, w, grid=grid, n_threads=k, **how) for k in (1, 2, 3, 7)]
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)
    # Where a scalar is rounded another way, a record or a person differs by a step.
    steps = np.abs(found[0] - by_numpy) / grid[:, None]
    assert steps.max() <= 8.0
    np.testing.assert_allclose(found[0], by_numpy, atol=1e-3 * np.abs(by_numpy).max())


@pytest.mark.usefixtures("isa")
@for_each("layout", sorted(set(LAYOUTS) - {"float32"}))
def test_without_a_long_sum_the_bits_are_those_of_the_sum_over_records(make, layout):
    data = make(n=900, **LAYOUTS[layout])
    w, persons = 0.5 * np.random.default_rng(1).standard_normal(data.d), people(data)
    how = {"clip": 0.5, "grid": 2.0**-22}
    sums = kernels.glm_gradient(data, w, **how)
    for person_clip in (50.0, 500.0):  # the bound of a person's factors, and of its records, serves
        found = glm_person_gradient(data, w, persons=persons, person_clip=person_clip, **how)
        np.testing.assert_array_equal(found, sums)
    alone = np.arange(data.n + 1)
    found = glm_person_gradient(data, w, persons=alone, person_clip=0.5, **how)
    np.testing.assert_array_equal(found, sums)


def one_person(data, w, person_clip, clip, grid, **how):
    persons = np.array([0, data.n])
    return glm_person_gradient(
        data, w, persons=persons, person_clip=person_clip, clip=clip, grid=grid, **how
    )


@pytest.mark.usefixtures("isa")
@for_each("options", ROW_OPTIONS)
@for_each("kind", rows(8, 100))
@for_each("size", [1, 2, 5, 70])
def test_no_person_is_longer_than_its_clip(bare_records, longer, options, kind, size):
    x = np.array(rows(8, 100)[kind])
    X = np.vstack([x * (1.0 - 0.01 * (i % 3)) for i in range(size)])
    given = dict(ROW_OPTIONS[options])
    if given.pop("affine", False):
        given |= {"scale": np.full(x.size, -1.75), "shift": np.linspace(-1.0, 1.0, x.size)}
    if "weight" in given:
        beside = {"record_weight": given.pop("weight"), "margin_offset": given.pop("offset")}
        given |= {name: np.full(size, value) for name, value in beside.items()}
    for V in (X, np.where(np.arange(size)[:, None] % 2, -X, X)):
        data = bare_records(np.ascontiguousarray(V), np.ones(size), [0, size], **given)
        for clip, person_clip in ((1.0, 1.0), (1.0, 1.7), (0.3, 0.1), (1e-3, 3e-3)):
            for grid in (coarsest_grid(min(clip, person_clip), data.d), clip * 2.0**-40):
                grid = 2.0 ** math.floor(math.log2(grid))
                for w in (np.zeros(data.d), np.full(data.d, -3.0)):
                    sums = one_person(data, w, person_clip, clip, grid)
                    assert not longer(sums, grid, person_clip)


@pytest.mark.usefixtures("isa")
@for_each("p", [3, 16, 17, 1100])
def test_rows_without_a_gradient_count_for_nothing_wherever_they_are(bare_records, longer, p):
    """A whole block of them too, at the end of a person: margins that are NaN, rows too long."""
    good, w = np.ones((90, p)), np.zeros(p)
    bad = np.full((90, p), 1e308)
    for X in (np.vstack([good, bad]), np.vstack([bad, good]), np.vstack([bad, good, bad])):
        data = bare_records(X, np.ones(len(X)), [0, len(X)])
        grid = 2.0 ** math.floor(math.log2(0.3 / 32 / math.sqrt(p)))
        sums = one_person(data, w, 2.0, 0.3, grid)
        assert not longer(sums, grid, 2.0)
        assert longer(sums, grid, 2.0 - 2.0 * grid * math.sqrt(p))
        alone = bare_records(good, np.ones(90), [0, 90])
        np.testing.assert_array_equal(sums, one_person(alone, w, 2.0, 0.3, grid))


@given(case=random_cases(n=6), ratio=st.floats(0.1, 6.0), fine=st.integers(0, 35))
@settings(anywhere, max_examples=150)
@pytest.mark.usefixtures("isa")
def test_no_person_of_random_records_is_longer_than_its_clip(
    bare_records, longer, case, ratio, fine
):
    X, y, options, w, clip, loss = case
    data = bare_records(X, y, [0, len(y)], **options)
    grid = max(coarsest_grid(clip, data.d) * 2.0**-fine, 2.0**-400)
    if grid * 32 * math.sqrt(data.d) > clip or grid < 2.0**-399:
        return
    person_clip = ratio * clip
    with np.errstate(all="ignore"):
        sums = one_person(data, w, person_clip, clip, grid, loss=loss)
    assert not longer(sums, grid, person_clip)


@pytest.mark.usefixtures("isa")
@for_each("csr", [False, True])
def test_replacing_a_person_moves_the_sum_by_the_charged_sensitivity_at_most(
    make, longer, steps, csr
):
    """Of hard rows in place of a person's, at the coarsest grid and a fine one."""
    clip, person_clip = 1.0, 2.5
    data = make(n=240, p=16, m=3, csr=csr, intercept=True)
    persons, w = people(data, most=9), np.full(data.d, 0.1)
    sizes = np.diff(persons)
    i = int(np.argmax(np.where(sizes < 20, sizes, 0)))
    grid = coarsest_grid(clip, data.d)
    for q in (grid, grid * 2.0**-20):
        how = {"clip": clip, "persons": persons, "person_clip": person_clip, "grid": q}
        found, far = [], 0.0
        for row in rows(16, 16).values():
            for sign in (1.0, -1.0):
                X = data.X.toarray() if csr else data.X.copy()
                x = np.zeros(16)
                x[: min(16, len(row))] = np.asarray(row)[:16]
                X[persons[i] : persons[i + 1]] = x
                y = data.y.copy()
                y[persons[i] : persons[i + 1]] = sign
                changed = type(data)(type(data.X)(X) if csr else X, y, data.offsets, intercept=True)
                found.append(glm_person_gradient(changed, w, **how))
        for a in found:
            for b in found:
                pairs = [(steps(x, q), steps(y, q)) for x, y in zip(a, b, strict=True)]
                moved = [
                    Fraction(q) ** 2 * sum((s - t) ** 2 for s, t in zip(*pair, strict=True))
                    for pair in pairs
                ]
                assert sum(square > 0 for square in moved) <= 1  # no other silo's
                assert max(moved) <= Fraction(2.0 * person_clip) ** 2
                far = max(far, float(max(moved)) ** 0.5)
        assert far > 1.9 * person_clip  # the bound is nearly reached


def test_errors_name_the_argument(make):
    data = make(n=60)
    w, good = np.zeros(data.d), people(data)
    inside = np.setdiff1d(good, data.offsets[1:-1])
    for persons in (inside, np.append(good, 60), good[:-1], [[0, 60]]):
        with pytest.raises(ValueError, match="persons must"):
            glm_person_gradient(data, w, clip=1.0, persons=persons, person_clip=1.0)
    for name in ("clip", "person_clip"):
        how = {"clip": 1.0, "person_clip": 1.0, name: math.inf}
        with pytest.raises(ValueError, match=f"{name} must be"):
            glm_person_gradient(data, w, persons=good, **how)
    lone = make(n=20, m=1)
    with pytest.raises(ValueError, match="grid must be at least r clip"):
        one_person(lone, np.zeros(lone.d), 1.0, 1.0, 2.0**-47)
