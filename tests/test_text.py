"""Tables, folded lines and figures of printed results."""

import math

from cases import for_each
from hypothesis import given
from hypothesis import strategies as st

from dpkern._numbers import aligned, fold, rounded_down, rounded_up


def test_columns_are_aligned_to_their_sides():
    rows = [("name", "n", ""), ("a", "100", "ok"), ("longer", "7", "")]
    assert aligned(rows, right={1}) == ["name      n", "a       100  ok", "longer    7"]


def test_lines_are_folded_below_the_text_of_their_name():
    text = "title\n  notes  one two-three four"
    assert fold(text, 20) == "title\n  notes  one\n         two-three\n         four"
    assert fold("  notes  " + 30 * "x", 20).split() == ["notes", 30 * "x"]


@given(value=st.floats(1e-300, 1e300))
def test_figures_are_rounded_to_their_own_side(value):
    above, below = float(rounded_up(value)), float(rounded_down(value))
    assert value <= above <= value * 1.0011
    assert value / 1.0011 <= below <= value * (1.0 + 1e-8)
    assert rounded_up(above) == rounded_up(value)


@for_each("rounded", [rounded_up, rounded_down])
def test_decimals_of_few_digits_are_printed_as_they_are(rounded):
    for value in (0.0, 0.1, 0.3, 0.0007, 1.5, 12.0):
        assert float(rounded(value)) == value
    assert rounded(math.inf) == "infinite"
    assert rounded(math.nextafter(0.3, 0.0)) == "0.3"
