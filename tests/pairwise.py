"""Covering designs in the place of full products of parameters.

A design of strength t runs every combination of values of any t factors, in far fewer cases than
their product has: a fault that needs t values to meet is met. The options of the records are
combined by threes always; a kernel's agreement with its reference is tried at strength 3
throughout, since kernels are compiled for an instruction set, a kind of rows and a loss.
"""

import itertools
from collections import Counter
from functools import cache

import numpy as np
import pytest
from adversarial import EVERY_LOSS
from cases import choose_cases, for_each

from dpkern import _core

# Options of `make_records`: what can differ between two ways of holding the rows.
ROWS = {
    "kind": {
        "float64": {},
        "float32": {"dtype": np.float32},
        "csr": {"csr": True},
        "csr32": {"csr": True, "dtype": np.float32},
    },
    "transform": {"": {}, "affine": {"affine": True}},
    "intercept": {"": {}, "intercept": {"intercept": True}},
    "bound": {"": {}, "bounded": {"row_bound": 1.5}},
    "weights": {"": {}, "weighted": {"weighted": True}},
}
SHARED = {
    "isa": {name: name for name in _core.isa_names()},
    "loss": {loss.name: loss for loss in EVERY_LOSS},
    "convex": {loss.name: loss for loss in EVERY_LOSS if loss.convex},
}


@cache
def covering(sizes, groups):
    """Cases of `len(sizes)` numbers below `sizes` in which all combinations of each group occur.

    Greedy: a case begins with the first combination that is missing, and every further factor
    takes the value that adds most of those that are; a tie goes to the value used least.
    """
    missing = {
        (group, values): None
        for group in groups
        for values in itertools.product(*(range(sizes[k]) for k in group))
    }
    order = sorted(range(len(sizes)), key=lambda k: -sizes[k])
    used = [Counter() for _ in sizes]
    cases = []
    while missing:
        group, values = next(iter(missing))
        case = dict(zip(group, values, strict=True))
        for k in (k for k in order if k not in case):
            others = [g for g in groups if k in g and all(i == k or i in case for i in g)]

            def rank(v, k=k, others=others, trial=case):
                trial = trial | {k: v}
                new = sum((g, tuple(trial[i] for i in g)) in missing for g in others)
                return new, -used[k][v], -v

            case[k] = max(range(sizes[k]), key=rank)
        for group in groups:
            missing.pop((group, tuple(case[i] for i in group)), None)
        for k, v in case.items():
            used[k][v] += 1
        cases.append(tuple(case[k] for k in range(len(sizes))))
    return cases


def groups_of(factors, strength):
    """All groups of `strength` of these factors."""
    return tuple(itertools.combinations(factors, min(strength, len(factors))))


def named(values):
    """Values by the name that a test's id shows."""
    if isinstance(values, dict):
        return values
    return {getattr(value, "__name__", None) or str(value): value for value in values}


def parts_of(name):
    """The factors that a shared name stands for."""
    if name not in ("layout", "plain_layout"):
        return [SHARED[name]]
    return [part for key, part in ROWS.items() if key != "weights" or name == "layout"]


def design(*shared, strength=2, **factors):
    """Arguments of a test, the cases of a covering design, and their names; see `pairwise`."""
    names, levels = [], []
    for name in shared:
        for part in parts_of(name):
            names.append({"convex": "loss", "plain_layout": "layout"}.get(name, name))
            levels.append(part)
    for name, values in factors.items():
        names.append(name)
        levels.append(named(values))
    arguments = list(dict.fromkeys(names))
    cases, ids = [], []
    groups = groups_of(range(len(names)), strength)
    groups += groups_of([k for k, name in enumerate(names) if name == "layout"], 3)
    for numbers in covering(tuple(map(len, levels)), groups):
        case, shown = {}, []
        for name, part, k in zip(names, levels, numbers, strict=True):
            key, value = list(part.items())[k]
            case[name] = case.get(name, {}) | value if name == "layout" else value
            shown.append(str(key))
        cases.append([case[name] for name in arguments])
        ids.append("-".join(filter(None, shown)))
    return arguments, cases, ids


def pairwise(*shared, strength=2, **factors):
    """Run a test on a covering design: one item, or one for each instruction set.

    Parameters
    ----------
    *shared : {"isa", "loss", "convex", "layout", "plain_layout"}
        Factors that many tests have: the instruction set in use, the argument `loss`, or a convex
        one, and, as `layout`, the options of `make_records`, whose parts are factors of their own;
        "plain_layout" is without weights and margin offsets.
    strength : int
        How many factors are combined in full, whichever they are.
    **factors : sequence or dict
        Values of further arguments of the test; the keys of a dict are shown in its ids.
    """
    arguments, cases, ids = design(*shared, strength=strength, **factors)
    if "isa" not in arguments:
        return for_each(arguments, cases, ids)
    by_isa = {}
    for name, (isa, *case) in zip(ids, cases, strict=True):
        by_isa.setdefault(isa, []).append(pytest.param(*case, id=name))
    return choose_cases("isa", arguments[1:], by_isa)
