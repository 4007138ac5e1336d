"""Covering designs: nothing is left out, and few cases do it."""

import itertools
import math

from cases import for_each
from pairwise import ROWS, covering, design, groups_of

DESIGNS = [(4,), (3, 5), (2,) * 10, (3, 2, 2, 2, 2, 2, 5), (13, 7, 2, 3), (1, 4, 1, 3)]


@for_each("sizes", DESIGNS, ids=str)
@for_each("strength", [1, 2, 3])
def test_every_combination_of_any_factors_occurs_in_few_cases(sizes, strength):
    groups = groups_of(range(len(sizes)), strength)
    cases = covering(sizes, groups)
    for group in groups:
        seen = {tuple(case[k] for k in group) for case in cases}
        assert seen == set(itertools.product(*(range(sizes[k]) for k in group)))
    assert len(set(cases)) == len(cases)
    least = math.prod(sorted(sizes)[-strength:])
    assert least <= len(cases) <= least * (1 + strength)
    assert covering.__wrapped__(sizes, groups) == cases


def test_parts_of_a_layout_are_factors_of_their_own_and_one_argument():
    names, cases, ids = design("layout", clip=[0.5, math.inf], net={"small": (3,), "": (4,)})
    assert names == ["layout", "clip", "net"]
    assert len(set(ids)) == len(cases) < 2**7
    for parts in itertools.combinations(ROWS.values(), 3):
        for values in itertools.product(*(part.values() for part in parts)):
            options = {k: v for value in values for k, v in value.items()}
            others = {k for part in parts for value in part.values() for k in value} - set(options)
            held = [
                (clip, net)
                for layout, clip, net in cases
                if options.items() <= layout.items() and not others & set(layout)
            ]
            assert held
    for part in ROWS.values():
        own = {k for value in part.values() for k in value}
        held = {
            (str({k: v for k, v in layout.items() if k in own}), other)
            for layout, *rest in cases
            for other in rest
        }
        assert len(held) == len(part) * 4
    for (layout, clip, net), name in zip(cases, ids, strict=True):
        words = name.split("-")
        assert ("csr32" in words) == ("csr" in layout and "dtype" in layout)
        assert ("affine" in words) == ("affine" in layout)
        assert (str(clip) in words, "small" in words) == (True, net == (3,))
