"""Rules that give records to silos.

A rule returns the order of the records, sorted by silo, and the sizes of the silos.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpkern._checks import Float64Array, Task, targets
from dpkern._numbers import positive

How = Literal["even", "random", "two_groups", "by_label", "dirichlet"]

NOTES = {
    "by_label": "silos hold one label each: sizes and the silo of a record depend on the labels",
    "dirichlet": "label shares differ by silo: sizes and the silo of a record depend on the labels",
}


def partition(
    y: NDArray[Any],
    m: int,
    how: How,
    rng: np.random.Generator,
    min_size: int,
    ratio: float | None,
    concentration: float | None,
    task: Task | None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    for name, value, owner in (
        ("ratio", ratio, "two_groups"),
        ("concentration", concentration, "dirichlet"),
    ):
        if (value is not None) != (how == owner):
            raise ValueError(
                f"{name} is {value!r} with how={how!r}; it belongs to how={owner!r} and is needed "
                "there"
            )
    order = rng.permutation(len(y))
    if how == "even":
        return order, _shares(len(y), np.ones(m))
    if how == "random":
        spare = len(y) - m * min_size
        cuts = np.sort(rng.integers(0, spare, size=m - 1, endpoint=True))
        return order, min_size + np.diff(cuts, prepend=0, append=spare)
    if how == "two_groups":
        ratio = positive("ratio", ratio)
        if ratio < 1.0:
            raise ValueError(f"ratio is {ratio!r}; it must be at least 1")
        return order, _shares(len(y), np.where(np.arange(m) < m // 2, ratio, 1.0))
    if how not in ("by_label", "dirichlet"):
        raise ValueError(
            f"how is {how!r}; it must be one of even, random, two_groups, by_label, dirichlet"
        )
    signs, task, _ = (None, task, None) if task == "multiclass" else targets(y, task)
    if signs is None or task != "classification":
        raise ValueError(f"how={how!r} needs two labels, and the task is {task}")
    plus = signs[order] > 0
    if how == "by_label":
        return _one_label_each(order[~plus], order[plus], m)
    silo = np.empty(len(y), dtype=np.int64)
    reserved = m * min_size
    silo[:reserved] = np.repeat(np.arange(m), min_size)
    for chosen in (~plus, plus):
        records = reserved + np.flatnonzero(chosen[reserved:])
        shares = rng.dirichlet(np.full(m, positive("concentration", concentration)))
        silo[records] = np.repeat(np.arange(m), rng.multinomial(len(records), shares))
    return order[np.argsort(silo, kind="stable")], np.bincount(silo, minlength=m)


def _shares(n: int, weights: Float64Array) -> NDArray[np.int64]:
    """Share n records in proportion to the weights, by largest remainders (Hamilton's method)."""
    shares = n * weights / weights.sum()
    sizes = np.floor(shares).astype(np.int64)
    largest_remainders = np.argsort(sizes - shares, kind="stable")[: n - sizes.sum()]
    sizes[largest_remainders] += 1
    return sizes


def _one_label_each(
    minus: NDArray[np.int64], plus: NDArray[np.int64], m: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if m < 2 or not len(minus) or not len(plus):
        raise ValueError(f"how='by_label' needs both labels and m of at least 2; m is {m}")
    n = len(minus) + len(plus)
    fewest, most = max(1, m - len(plus)), min(m - 1, len(minus))
    silos = min(max(round(m * len(minus) / n), fewest), most)
    sizes = (_shares(len(minus), np.ones(silos)), _shares(len(plus), np.ones(m - silos)))
    return np.concatenate((minus, plus)), np.concatenate(sizes)
