"""prox beside its reference, the NumPy of a skilled user, numba, and the machine's own copying."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from bench.cases import Case, Contenders, numba
from bench.speed import speed_test
from dpkern import kernels, reference
from dpkern.models.penalties import Box, GroupLasso, L2Ball, Simplex
from dpkern.models.terms import Term

GAMMA = 0.3
COPIERS = ("copyto",) if numba is None else ("copyto", "copy")


def soft_threshold(v: np.ndarray, out: np.ndarray) -> np.ndarray:
    """v - clip(v, -gamma, gamma) in place, blocks at a time so that the second pass is in cache."""
    for i in range(0, len(v), 1 << 14):
        part = out[i : i + (1 << 14)]
        np.clip(v[i : i + (1 << 14)], -GAMMA, GAMMA, out=part)
        np.subtract(v[i : i + (1 << 14)], part, out=part)
    return out


if numba is not None:

    @numba.njit(parallel=True, fastmath=True, cache=True)
    def numba_l1(v: np.ndarray, gamma: float, out: np.ndarray) -> np.ndarray:
        for k in numba.prange(v.size):
            out[k] = v[k] - min(max(v[k], -gamma), gamma)
        return out

    @numba.njit(parallel=True, cache=True)
    def copy(v: np.ndarray, out: np.ndarray) -> np.ndarray:
        for k in numba.prange(v.size):
            out[k] = v[k]
        return out


def copiers(v: np.ndarray, out: np.ndarray) -> Contenders:
    """What no prox of v exceeds: all bytes read once and written once, by all threads."""
    v, out = v.reshape(-1), out.reshape(-1)

    def copyto() -> np.ndarray:
        np.copyto(out, v)
        return out

    return {"copyto": copyto} | ({} if numba is None else {"copy": partial(copy, v, out)})


def setup_l1(n: int) -> tuple[Contenders, None]:
    v, out = np.random.default_rng(0).standard_normal(n), np.zeros(n)
    ours = partial(kernels.prox, "l1", v, GAMMA)
    contenders: Contenders = {
        "dpkern": partial(ours, out=out),
        "numpy": partial(soft_threshold, v, np.zeros(n)),
        "twin": partial(reference.prox, "l1", v, GAMMA),
        "1 thread": partial(ours, out=out, n_threads=1),
        "new memory": ours,
    }
    if numba is not None:
        contenders["numba"] = partial(numba_l1, v, GAMMA, np.zeros(n))
    return contenders | copiers(v, np.zeros(n)), None


def setup(penalty: Term, shape: tuple[int, ...]) -> tuple[Contenders, None]:
    v, out = np.random.default_rng(0).standard_normal(shape), np.zeros(shape)
    return {
        "dpkern": partial(kernels.prox, penalty, v, GAMMA, out=out),
        "twin": partial(reference.prox, penalty, v, GAMMA),
        **copiers(v, np.zeros(shape)),
    }, None


def cases(quick: bool) -> list[Case]:
    vectors = [100_000] if quick else [10_000_000, 100_000]
    n = 10_000 if quick else 1_000_000
    others: list[tuple[str, Callable[[], Any], tuple[int, ...]]] = [
        ("simplex", Simplex, (n,)),
        ("simplex", Simplex, (n // 100, 100)),
        ("l2_ball", L2Ball, (n // 100, 100)),
        ("group_lasso", partial(GroupLasso, groups=[10] * (n // 10)), (n,)),
        ("box", partial(Box, np.full(n, -0.5), np.full(n, 0.5)), (n,)),
    ]
    return [
        *(
            Case(
                "prox l1",
                f"{size} float64",
                partial(setup_l1, size),
                16 * size,
                tolerance=1e-12,
                goals={"copy": 0.85} if size > 1_000_000 else {},
                limits=dict.fromkeys(COPIERS, 16 * size),
            )
            for size in vectors
        ),
        *(
            Case(
                f"prox {name}",
                " x ".join(map(str, shape)),
                partial(setup, make(), shape),
                16 * int(np.prod(shape)),
                tolerance=1e-12,
                limits=dict.fromkeys(COPIERS, 16 * int(np.prod(shape))),
            )
            for name, make, shape in others
        ),
    ]


test_speed = speed_test(cases, ["dpkern", "numpy", "numba", "copy", "copyto", "twin"])
