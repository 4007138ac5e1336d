"""One encoding of what results and certificates hold: all of it comes back from standard JSON."""

import hashlib
import json
import math

import numpy as np
from cases import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from makers import assert_refused

import dpkern as dpk
from dpkern._json import canonical, decode, digest, encode, plain_mapping

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
names = st.text().filter(lambda name: name != "__float__")
trees = st.recursive(leaves, lambda t: st.lists(t) | st.dictionaries(names, t), max_leaves=20)


@settings(max_examples=60, deadline=None)
@given(tree=trees)
def test_everything_comes_back_from_standard_json(tree):
    assert decode(json.loads(json.dumps(encode(tree), allow_nan=False))) == tree


def test_numpy_values_and_tuples_become_plain_ones():
    values = {"a": np.array([1.0, np.inf]), "b": np.float64(-np.inf), "c": (1, (2,)), "d": np.nan}
    back = decode(json.loads(json.dumps(encode(values), allow_nan=False)))
    assert math.isnan(back.pop("d"))
    assert back == {"a": [1.0, math.inf], "b": -math.inf, "c": [1, [2]]}


@for_each(
    ("value", "message"),
    [
        ([1], "TypeError: x must be a mapping, got list"),
        ({1: 2}, "x must have strings"),
        ({"__float__": 1}, "x must have strings"),
        ({"a": {"b": math.nan}}, r"x\['a'\]\['b'\] must be a number, got nan"),
        ({"a": object()}, r"TypeError: x\['a'\] must be None, a number, .* got object"),
    ],
)
def test_parameters_that_no_file_holds_are_refused_by_name(value, message):
    assert_refused(message, plain_mapping, "x", value)


def test_a_model_from_a_file_keeps_parameters_and_certificate_that_are_infinite(tmp_path):
    X, y = np.random.default_rng(0).standard_normal((40, 2)), np.arange(40) % 2
    data = dpk.SiloData.split(X, y, m=2)
    result = dpk.solve("gradient_descent", data, budget=None, rounds=2, step_size=0.1)
    result.save(tmp_path / "model.npz")
    again = dpk.load(tmp_path / "model.npz")
    assert again.privacy == result.privacy
    assert again.privacy.mu == math.inf
    assert again.privacy.declared["clip"] == math.inf
    assert again.history == result.history


def test_a_file_does_not_hold_what_the_history_says_of_training_records(tmp_path):
    X, y = np.random.default_rng(0).standard_normal((40, 2)), np.arange(40) % 2
    data = dpk.SiloData.split(X, y, m=2)
    result = dpk.solve("gradient_descent", data, budget=None, rounds=2, step_size=0.1,
                       monitor="train")  # fmt: skip
    result.save(tmp_path / "model.npz")
    assert set(result.history) - set(dpk.load(tmp_path / "model.npz").history) == {
        "objective", "accuracy",
    }  # fmt: skip


def test_the_text_that_a_digest_is_of_has_one_form():
    values = {"b": [1, 2.0], "a": None}
    text = '{"a":null,"b":[1,2.0]}'
    assert canonical(values) == text
    assert canonical(values, spaces=True) == '{"a": null, "b": [1, 2.0]}'
    expected = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    assert digest(values | {"digest": "old"}) == expected
