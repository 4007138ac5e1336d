"""Releases in plain numbers: what may be wrong with them, and what a certificate says of them.

Of `dpkern verify`, and thus without an import of the ledger, the certificate and the laws.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

# Grids are at least this share of the std (docs/design.md, section 3).
_FINEST = 2.0**-33


def problems(release: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the numbers of one release."""
    sensitivity, std, grid = (as_list(release[name]) for name in ("sensitivity", "std", "grid"))
    if not isinstance(release["what"], str):
        yield "description"
    for name in ("times", "dim"):
        if not (isinstance(release[name], int) and release[name] >= 1):
            yield name
    for name in ("per_record", "draws", "coins", "series"):
        value = release.get(name)
        if value is not None and not (isinstance(value, int) and value > 0):
            yield name
    if release.get("series") is not None and release["per_record"] is None:
        yield "series without a cap"
    if not any(d > 0.0 for d in sensitivity) and release["seen_by"] != "nobody":
        yield "sensitivity"
    for name, other in (("std", std), ("grid", grid)):
        if release[name] is not None and len(other) != len(sensitivity):
            yield "numbers of silos"
            return
    if any(not 0.0 <= s < math.inf for s in std) or any(not d >= 0.0 for d in sensitivity):
        yield "std or sensitivity"
    if any(not (q > 0.0 and math.frexp(q)[0] == 0.5) for q in grid):
        yield "grid, which is no power of two,"
    if release["coins"] is not None:
        if grid != [1.0] or not close(std[0], math.sqrt(release["coins"]) / 2.0, 1e-12):
            yield "std or grid of binomial noise"
    elif any(
        s and not _FINEST * s <= q <= max(s, d)
        for d, s, q in zip(sensitivity, std, grid, strict=False)
    ):
        yield "grid for this std"


def volume(declared: Mapping[str, Any]) -> float | None:
    """Return log(1 + L / Lambda) for the usual losses and weights, None for others."""
    loss, sizes, R = declared.get("loss"), declared.get("sizes"), declared.get("row_bound")
    own: Mapping[str, Any] = loss if isinstance(loss, Mapping) else {"name": loss}
    curvatures = {"logistic": 0.25, "huber": 1.0, "smoothed_hinge": 1.0 / own.get("h", 1.0)}
    if sizes is None:
        return None
    sizes = as_list(sizes)
    totals = {"size": sum(sizes), "uniform": len(sizes) * min(sizes)}
    weights = str(declared.get("weights"))
    if own["name"] not in curvatures or weights not in totals or R is None:
        return None
    penalty = totals[weights] * (declared["l2"] + declared["added_l2"])
    return math.log1p(curvatures[own["name"]] * R**2 / penalty)


def event(release: Mapping[str, Any], silo: int) -> tuple[tuple[Any, ...], int] | None:
    """Return ((method, batch, size, noise multiplier), count) of a release about a silo."""
    j = silo if isinstance(release["sensitivity"], list) else 0
    d, s = as_list(release["sensitivity"])[j], as_list(release["std"])[j]
    if d == 0.0:
        return None
    times = release["times"]
    if release["per_record"] is not None:
        times = min(times, release["per_record"])
    of = release["sampling"]
    if of is None:
        return (None, 1, 1, s / d), times
    return (of["method"], of["batch_sizes"][silo], of["sizes"][silo], s / d), times


def close(stated: Any, found: Any, tolerance: float) -> bool:
    """Return whether a stated figure is at least the recomputed one, and hardly more."""
    return bool(found * (1 - 1e-15) <= stated <= found * (1 + tolerance))


def as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
