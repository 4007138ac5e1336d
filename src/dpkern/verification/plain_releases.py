"""Releases in plain numbers: what may be wrong with them, and what a certificate says of them.

Of `dpkern verify`, and thus without an import of the ledger, the certificate and the guarantees.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

#: Releases whose sensitivity is twice the clip norm, or the clip norm where records are added.
GRADIENTS = ("sum of clipped gradients", "sum of clipped gradients of a local step")
#: Those whose sensitivity depends on the distance of two models.
DIFFERENCES = "sum of clipped differences of gradients"
#: How the description of Hessians ends that add B to the gradients beside them, with (2C/s_g)^2 at
#: least so many times (B/s_H)^2 (docs/proofs/newton_joint.md).
BESIDE, LEAST_RATIO = ", beside gradients at the same models", 3.0
#: The relative excess of a stated figure over the recomputed one, for a std that is rounded up.
STD = 1e-8
# Grids are at least this share of the std (docs/design.md, section 3).
_FINEST = 2.0**-33


def problems(release: Mapping[str, Any]) -> Iterator[str]:
    """Yield the name of every number of a release that is impossible."""
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


def is_beside(hessians: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Whether so many gradients have noise beside which a replaced Hessian adds B."""
    B = values["declared"].get("hess_clip")
    D, s = as_list(hessians["sensitivity"]), as_list(hessians["std"])
    right = values["neighbours"] == "replace_one" and isinstance(B, int | float)
    right = right and all(B <= d <= 1.1 * B for d in D)
    beside = [r for r in values["releases"] if r["what"] == GRADIENTS[0]]
    right = right and sum(r["times"] for r in beside) >= hessians["times"]
    for r in beside:
        D_g, s_g = as_list(r["sensitivity"]), as_list(r["std"])
        right = right and r["seen_by"] == hessians["seen_by"] and len(D_g) == len(D)
        right = right and len(s_g) == len(s) == len(D)
        right = right and all(
            (D_g[j] / s_g[j]) ** 2 >= LEAST_RATIO * (D[j] / s[j]) ** 2 * (1.0 - STD)
            for j in range(len(D))
        )
    return bool(right)


def is_sampled(sampling: Mapping[str, Any], declared: Mapping[str, Any]) -> bool:
    """Whether batches of records are as the run declares them."""
    sizes, batch = declared.get("sizes"), declared.get("batch_size")
    pairs = list(zip(sampling["batch_sizes"], sampling["sizes"], strict=True))
    right = all(1 <= k <= n for k, n in pairs)
    right = right and declared.get("sampling", sampling["method"]) == sampling["method"]
    right = right and (sizes is None or as_list(sizes) == sampling["sizes"])
    return right and (batch is None or set(sampling["batch_sizes"]) == {batch})


def least_of_differences(
    release: Mapping[str, Any], declared: Mapping[str, Any]
) -> list[float] | None:
    """Return the sensitivities of docs/proofs/differences.md, or smaller ones by roundings.

    Four times the clip norm is enough for any loss and distance. None where the certificate does
    not say what is needed, such as a loss of the table.
    """
    C, R, L = declared.get("clip"), declared.get("row_bound"), curvature(declared)
    stated, grids = as_list(release["sensitivity"]), as_list(release["grid"])
    if C is not None and all(d == 0.0 or d >= 4.0 * C for d in stated):
        return [0.0] * len(stated)
    if L is None or C is None or R is None:
        return None
    if release.get("between") is None:
        return [4.0 * C] * len(stated)
    (distance, norms), d = release["between"], release["dim"]
    beta = L * R**2
    b = max(beta * distance, 2.0**-20 * C)
    C_r = min(2.0 * C, b)
    found = []
    for q in grids:
        rho = (b + q * math.sqrt(d)) / 2.0 + beta * max(norms, distance) * (d + 16) * 2.0**-52
        rho *= 1.0 + 2.0**-19
        # Two balls: of C_r around 0, and of rho around a point at the distance b / 2.
        plane = (C_r**2 - (rho - b / 2.0) * (rho + b / 2.0)) / b
        half = rho if plane >= b / 2.0 else math.sqrt(C_r**2 - max(plane, 0.0) ** 2)
        found.append(2.0 * min(C_r, half) * (1.0 - 1e-9))
    return found


def curvature(declared: Mapping[str, Any]) -> float | None:
    """Return phi''max of the declared loss, None where there is none."""
    loss = declared.get("loss")
    own: Mapping[str, Any] = loss if isinstance(loss, Mapping) else {"name": loss}
    found = dict.fromkeys(("squared", "huber", "squared_hinge"), 1.0)
    found |= {"logistic": 0.25, "smoothed_hinge": 1.0 / own.get("h", 1.0)}
    high = own.get("high", 3.0)
    ratio = math.sqrt(2.0 / math.pi) * math.exp(-(high**2) / 2.0) / math.erfc(high / math.sqrt(2.0))
    found["probit"] = ratio * (ratio - high) * (1.0 + 1e-12)
    found["custom"] = own.get("smoothness", math.inf)
    L = found.get("custom" if "custom" in own else own["name"], math.inf)
    return None if math.isinf(L) else L


def volume(declared: Mapping[str, Any]) -> float | None:
    """Return log(1 + L / Lambda) for the usual losses and weights, None for others."""
    L, sizes, R = curvature(declared), declared.get("sizes"), declared.get("row_bound")
    if sizes is None:
        return None
    sizes = as_list(sizes)
    totals = {"size": sum(sizes), "uniform": len(sizes) * min(sizes)}
    weights = str(declared.get("weights"))
    if L is None or weights not in totals or R is None:
        return None
    penalized = declared["penalize_intercept"] or not declared["intercept"]
    l2 = declared["l2"] if penalized else 0.0
    penalty = totals[weights] * (l2 + declared["added_l2"])
    return math.log1p(L * R**2 / penalty)


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
