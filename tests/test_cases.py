"""Many cases in one test: all run, and an error names those that fail."""

import inspect

import pytest
from cases import KEYS, for_each
from hypothesis import given, settings
from hypothesis import strategies as st


def test_all_cases_run_and_the_first_error_names_those_that_fail():
    seen = []

    @for_each("a, b", [(1, 2), pytest.param(2, 2, id="equal"), (4, 3), (7, 6)])
    @for_each(["c"], [[0.5], [None]], ids=["half", "none"])
    def test(a, b, c):
        seen.append((a, b, c))
        assert a < b or a == 4

    with pytest.raises(AssertionError) as caught:
        test()
    assert len(seen) == 8
    assert caught.value.__notes__ == ["failed for half, none", "failed for equal, 7-6"]


def test_names_are_those_that_pytest_shows():
    def fails(value):
        raise ValueError("wrong")

    for cases, ids, shown in (
        ([str, object()], None, "str, value1"),
        ([3, 4], lambda value: f"n{value}" if value < 4 else None, "n3, 4"),
    ):
        with pytest.raises(ValueError, match="wrong") as caught:
            for_each("value", cases, ids)(fails)()
        assert caught.value.__notes__ == [f"failed for {shown}"]


@for_each("number", [0, 1, 2])
def test_a_case_sees_nothing_of_the_one_before(number, monkeypatch, tmp_path, capsys):
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    assert not capsys.readouterr().out
    print(number)
    assert inspect.signature.__name__ == "signature"
    monkeypatch.setattr(inspect.signature, "__name__", "changed")
    assert KEYS.name.endswith(f"[{number}]")
    assert KEYS.count == 0
    KEYS.token_bytes(1)


@for_each("factor", [1, -1])
@given(st.integers())
@settings(max_examples=10)
def test_generated_examples_are_tried_on_every_case(factor, number):
    assert (factor * number) * factor == number


def test_cases_that_are_all_skipped_are_a_skipped_test():
    def test(reason):
        if reason:
            pytest.skip(reason)

    for_each("reason", ["a", ""])(test)()
    with pytest.raises(pytest.skip.Exception, match="a"):
        for_each("reason", ["a", "b"])(test)()


def test_an_unknown_argument_or_a_marked_case_is_refused():
    with pytest.raises(AssertionError, match="does not take"):
        for_each("other", [1])(lambda value: None)
    with pytest.raises(AssertionError, match="item of its own"):
        for_each("value", [pytest.param(1, marks=pytest.mark.proof)])
