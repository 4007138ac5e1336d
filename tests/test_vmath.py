"""Elementary functions of the hot loops: errors against 200 bits, special values, same bits."""

import mpmath
import numpy as np
import pytest
from makers import FUSED, assert_same_on

from dpkern import _core

# Errors stated in vmath.h, in units in the last place of the result.
STATED = {"exp_negative": 1.4, "log1p_unit": 2.6, "log1p_product": 2.6, "tanh_value": 3.2}
STATED |= {"exp_clamped": 1.4, "expm1_positive": 2.5}
EXP_STATED_RELATIVE = 1.9  # in units of 2^-53
EXACT = {"exp_negative": mpmath.exp, "log1p_unit": mpmath.log1p, "log1p_product": mpmath.log1p}
EXACT |= {"tanh_value": mpmath.tanh, "exp_clamped": mpmath.exp, "expm1_positive": mpmath.expm1}
# Where the largest errors were found, in searches of some ten million points.
WORST = {
    "exp_negative": ("-0x1.97920f0d0ab2ep+5", "-0x1.6adc57a85918cp+8", "-0x1.a6cd87aad558dp+6"),
    "log1p_unit": ("0x1.b0822c9246485p-2", "0x1.bdc71f9d12a85p-2", "0x1.badad15d8fb61p-2"),
}
WORST["tanh_value"] = ("0x1.bee03eba3dc88p-3", "-0x1.affa1b8f9d128p-3", "0x1.bda999cf76712p-3")
WORST["exp_clamped"] = ("0x1.595ce624d83a4p+9", "0x1.d4b1af8d89e38p+5", "0x1.858c9ae720e56p+3")
WORST["expm1_positive"] = ("0x1.8f65db6e3aa05p-2", "0x1.9443815a68b31p-2", "0x1.8aa4ccf032b2bp-2")
WORST["log1p_product"] = (*WORST["log1p_unit"], "0x1.aa83c33308085p-2", "0x1.934b793c4b5e5p+0")
BY_BITS = np.concatenate([2.0 ** -np.arange(1, 1075), [5e-324, 3e-310]])


def neighbours(x):
    x = np.asarray(x)
    down, up = np.nextafter(x, -np.inf), np.nextafter(x, np.inf)
    return np.concatenate([np.nextafter(down, -np.inf), down, x, up, np.nextafter(up, np.inf)])


def points(name):
    rng = np.random.default_rng(7)
    worst = np.array([float.fromhex(x) for x in WORST[name]])
    if name == "exp_negative":
        whole = np.arange(1.0, 1022.0)
        between = -(whole - 0.5) * np.log(2.0)  # where k changes and |r| is largest
        some = [-708.0 * rng.random(3000), -rng.random(3000), -BY_BITS, np.array([-0.0, -708.0])]
        some += [neighbours(between), -whole * np.log(2.0), between * (1 + 1e-4), worst]
        return np.clip(np.concatenate(some), -708.0, 0.0)
    if name in ("exp_clamped", "expm1_positive"):
        between = (np.arange(1.0, 1022.0) - 0.5) * np.log(2.0)
        some = [709.0 * rng.random(3000), rng.random(3000), BY_BITS, neighbours(between), worst]
        x = np.clip(np.concatenate(some), 0.0, 709.0)
        return x if name == "expm1_positive" else np.concatenate([x, np.clip(-x, -708.0, 0.0)])
    if name == "tanh_value":
        edges = (np.arange(30) + 0.5) * np.log(2.0) / 2.0  # where k changes
        some = [rng.uniform(-1.0, 1.0, 5000), rng.uniform(-40.0, 40.0, 2000), BY_BITS, -BY_BITS]
        some += [neighbours(edges), -edges * (1 + 1e-4), rng.uniform(0.17, 0.26, 3000), worst]
        return np.concatenate(some)
    root = np.sqrt(2.0) - 1.0  # where j changes
    some = [rng.random(3000), BY_BITS, 10.0 ** -rng.uniform(0, 20, 1000), np.array([0.0, 1.0])]
    some += [
        rng.uniform(root, 0.5, 3000),
        neighbours([root]),
        neighbours([0.5]),
        1 - BY_BITS,
        worst,
    ]
    if name == "log1p_product":
        powers = 2.0 ** np.arange(0, 1001)
        some += [
            rng.uniform(1, 4, 5000),
            rng.uniform(2.2, 2.7, 3000),
            neighbours(powers),
            powers - 1,
        ]
        some += [2.0 ** rng.uniform(0, 1000, 3000), worst]
        return np.clip(np.concatenate(some), 0.0, 2.0**1000)
    return np.clip(np.concatenate(some), 0.0, 1.0)


def evaluate(name, x):
    out = np.empty(len(x))
    _core.vmath(_core.vmath_names().index(name), np.array(x, dtype=float), out)
    return out


@pytest.fixture(params=STATED)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def truth():
    """Points and 200-bit values of every function."""
    with mpmath.workprec(200):
        return {f: (points(f), [EXACT[f](mpmath.mpf(x)) for x in points(f)]) for f in STATED}


def test_every_function_has_a_stated_error():
    assert set(_core.vmath_names()) == set(STATED)


@pytest.mark.proof
@pytest.mark.usefixtures("isa")
def test_errors_are_within_the_stated_bounds_and_come_near_them(name, truth):
    x, exact = truth[name]
    largest = relative = 0.0
    with mpmath.workprec(200):
        for computed, true in zip(evaluate(name, x), exact, strict=True):
            error = abs(mpmath.mpf(computed) - true)
            exponent = max(mpmath.frexp(true)[1] - 53, -1074)
            largest = max(largest, float(mpmath.ldexp(error, -exponent)))
            relative = max(relative, float(mpmath.ldexp(error, 53) / true) if true else 0.0)
    assert 0.7 * STATED[name] < largest <= STATED[name], largest
    assert name != "exp_negative" or relative <= EXP_STATED_RELATIVE


@pytest.mark.usefixtures("isa")
def test_special_values():
    end = evaluate("exp_negative", [-708.0])[0]
    beyond = [np.nextafter(-708.0, -np.inf), -709.0, -745.2, -1e5, -1e308, -np.inf]
    np.testing.assert_array_equal(evaluate("exp_negative", beyond), end)
    np.testing.assert_array_equal(evaluate("exp_negative", [0.0, -0.0, -5e-324, -1e-17]), 1.0)
    ends = evaluate("exp_clamped", [-708.0, 709.0])
    np.testing.assert_array_equal(evaluate("exp_clamped", beyond), ends[0])
    np.testing.assert_array_equal(evaluate("exp_clamped", [709.5, 1e308, np.inf]), ends[1])
    assert np.isnan(evaluate("exp_clamped", [np.nan]))[0]
    np.testing.assert_array_equal(evaluate("log1p_unit", BY_BITS[60:]), BY_BITS[60:])
    np.testing.assert_array_equal(evaluate("log1p_unit", [0.0, 1.0]), [0.0, np.log(2.0)])
    small = np.array([0.0, 5e-324, 1e-310, 1e-200])
    for sign in (1.0, -1.0):
        far = evaluate("tanh_value", sign * np.array([20.0, 32.0, 400.0, 1e308, np.inf]))
        np.testing.assert_array_equal(far, sign)
        np.testing.assert_array_equal(evaluate("tanh_value", sign * small), sign * small)
    assert np.signbit(evaluate("tanh_value", [-0.0])[0])
    for f in STATED:
        assert np.all(np.isnan(evaluate(f, [np.nan, -np.nan])))


@pytest.mark.usefixtures("isa")
def test_the_place_in_a_block_changes_no_bit(name):
    """The loops are vectors with a remainder, and both must compute the same."""
    x = points(name)
    one_by_one = np.concatenate([evaluate(name, [t]) for t in x[:500]])
    np.testing.assert_array_equal(evaluate(name, x)[:500], one_by_one)
    np.testing.assert_array_equal(evaluate(name, x[3:])[:497], one_by_one[3:])


@pytest.mark.isa
def test_fused_instruction_sets_give_the_same_bits(name):
    assert_same_on(FUSED, lambda: [evaluate(name, points(name))])


@pytest.mark.usefixtures("isa")
def test_values_are_those_of_numpy(name):
    x = points(name)
    by_numpy = getattr(np, {"l": "log1p", "t": "tanh", "e": "exp"}[name[0]] + "m1" * ("m1" in name))
    np.testing.assert_allclose(evaluate(name, x), by_numpy(x), rtol=1e-15, atol=5e-324)
