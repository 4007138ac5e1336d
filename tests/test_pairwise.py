"""Covering designs: nothing is left out, and few cases do it."""

import itertools
import math

import pytest
from pairwise import ROWS, covering, pairwise

DESIGNS = [(4,), (3, 5), (2,) * 10, (3, 2, 2, 2, 2, 2, 5), (13, 7, 2, 3), (1, 4, 1, 3)]


@pytest.mark.parametrize("sizes", DESIGNS, ids=str)
@pytest.mark.parametrize("strength", [1, 2, 3])
def test_every_combination_of_any_factors_occurs_in_few_cases(sizes, strength):
    cases = covering(sizes, strength)
    for group in itertools.combinations(range(len(sizes)), min(strength, len(sizes))):
        seen = {tuple(case[k] for k in group) for case in cases}
        assert seen == set(itertools.product(*(range(sizes[k]) for k in group)))
    assert len(set(cases)) == len(cases)
    least = math.prod(sorted(sizes)[-strength:])
    assert least <= len(cases) <= least * (1 + strength)
    assert covering.__wrapped__(sizes, strength) == cases


def parameters(*shared, **factors):
    """Arguments, cases and ids that a test is given."""

    def test():
        pass

    (mark,) = [m for m in pairwise(*shared, **factors)(test).pytestmark if m.name != "usefixtures"]
    return *mark.args, mark.kwargs["ids"]


def test_parts_of_a_layout_are_factors_of_their_own_and_one_argument():
    names, cases, ids = parameters("layout", clip=[0.5, math.inf], net={"small": (3,), "": (4,)})
    assert names == ["layout", "clip", "net"]
    assert len(set(ids)) == len(cases) < 2**7
    keys = [key for part in ROWS.values() for value in part.values() for key in value]
    for one, other in itertools.combinations(keys, 2):
        held = {(one in layout, other in layout) for layout, _, _ in cases}
        assert held == set(itertools.product((False, True), repeat=2))
    for key in keys:
        for k in (1, 2):
            assert len({(key in case[0], case[k]) for case in cases}) == 4
    for (layout, clip, net), name in zip(cases, ids, strict=True):
        words = name.split("-")
        assert ("csr" in words, "affine" in words) == ("csr" in layout, "affine" in layout)
        assert (str(clip) in words, "small" in words) == (True, net == (3,))
