"""Makes gaussian_table.h: the rational fits of Phi^-1 and the proven bounds of their errors.

Run `python gaussian_table.py > gaussian_table.h` (needs mpmath). The derivation of the bounds is
in gaussian_fit.h; this program evaluates them cell by cell, each term at the end of the cell where
it is largest.
"""

from collections.abc import Callable
from itertools import pairwise

import mpmath as mp

mp.mp.dps = 90
U = mp.mpf(2) ** -53
HALF, QUARTER = mp.mpf(1) / 2, mp.mpf(1) / 4

# The smaller tail probability down to which the coarse fit holds, and the fine fit.
P_SPLIT, P_LAST = mp.mpf(2) ** -7, mp.mpf(2) ** -30
COARSE_DEGREE, FINE_DEGREE = 9, 12
CELLS = 1500
# Between two cells' ends a fit's error grows by less than this: it has some 20 extremes, so that
# they are 70 cells apart.
FIT_MARGIN = mp.mpf(9) / 8

Function = Callable[[mp.mpf], mp.mpf]
Coefficients = list[mp.mpf]
Term = tuple[mp.mpf, mp.mpf]  # value, bound of its relative error


def quantile(p: mp.mpf) -> mp.mpf:
    """x > 0 with Q(x) = p, for 0 < p < 1/2."""
    guess = mp.sqrt(2) * mp.erfinv(1 - 2 * p) if p > 1e-9 else mp.sqrt(-2 * mp.log(p)) - 0.4
    return mp.findroot(lambda x: mp.log(mp.erfc(x / mp.sqrt(2)) / 2) - mp.log(p), guess)


def density(x: mp.mpf) -> mp.mpf:
    return mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi)


def coarse(v: mp.mpf) -> mp.mpf:
    """x / u at v = 1/4 - u^2."""
    u = mp.sqrt(QUARTER - v)
    return quantile(HALF - u) / u if u > 1e-12 else mp.sqrt(2 * mp.pi)


def fine(s: mp.mpf) -> mp.mpf:
    """x / s at s = -ln(2 p)."""
    return quantile(mp.exp(-s) / 2) / s if s > 1e-12 else mp.sqrt(mp.pi / 2)


def chebyshev(a: mp.mpf, b: mp.mpf, count: int) -> list[mp.mpf]:
    return [(a + b) / 2 - (b - a) / 2 * mp.cos(mp.pi * i / (count - 1)) for i in range(count)]


def horner(coefficients: Coefficients, x: mp.mpf) -> mp.mpf:
    return mp.polyval(coefficients[::-1], x)


def rational_fit(
    f: Function, weight: Function, a: mp.mpf, b: mp.mpf, degree: int, rounds: int = 14
) -> tuple[Coefficients, Coefficients]:
    """Nearly minimax A/B of equal degrees: linearised least squares with Lawson's weights.

    `weight` says how much an error of the quotient counts.
    """
    points = chebyshev(a, b, 12 * (degree + 1))
    values, weights = [f(x) for x in points], [weight(x) for x in points]
    lawson = [mp.mpf(1)] * len(points)
    denominator = [mp.mpf(1)] * len(points)
    fits = []
    for i in range(rounds):
        M = mp.matrix(len(points), 2 * degree + 1)
        rhs = mp.matrix(len(points), 1)
        for row, (x, y) in enumerate(zip(points, values, strict=True)):
            scale = mp.sqrt(lawson[row]) * weights[row] / denominator[row]
            for j in range(degree + 1):
                M[row, j] = scale * x**j
                if j:
                    M[row, degree + j] = -scale * y * x**j
            rhs[row] = scale * y
        solution = list(mp.lu_solve(M, rhs))
        A, B = solution[: degree + 1], [mp.mpf(1), *solution[degree + 1 :]]
        denominator = [horner(B, x) for x in points]
        errors = [
            w * abs(y - horner(A, x) / horner(B, x))
            for x, y, w in zip(points, values, weights, strict=True)
        ]
        worst = max(errors)
        fits.append((worst, A, B))
        if i >= 4:
            mean = mp.fsum(lawson) / len(lawson)
            lawson = [
                w / mean * (e / worst) + mp.mpf(10) ** -30
                for w, e in zip(lawson, errors, strict=True)
            ]
    _, *best = min(fits, key=lambda fit: fit[0])
    A, B = ([mp.mpf(float(c)) for c in coefficients] for coefficients in best)
    assert min(A + B) > 0, "the rounding bound needs positive coefficients"
    return A, B


def rounding(coefficients: Coefficients, x: mp.mpf) -> mp.mpf:
    """Bound of the relative rounding error of a polynomial evaluated as in gaussian_fit.h.

    Pairs, then Horner's rule in x^2; product and sum rounded apart. With positive coefficients and
    x >= 0 it grows with x.
    """

    def step(low: Term, high: Term, power: Term) -> Term:
        product = high[0] * power[0]
        value = low[0] + product
        error = (1 + high[1]) * (1 + power[1]) * (1 + U) - 1
        return value, ((low[0] * low[1] + product * error) / value) * (1 + U) + U

    x1, x2 = (x, mp.mpf(0)), (x * x, U)
    exact = [(c, U) for c in coefficients]  # the coarse A is multiplied by sigma
    pairs = [step(exact[i], exact[i + 1], x1) for i in range(0, len(exact) - 1, 2)]
    pairs += exact[len(pairs) * 2 :]
    total = pairs.pop()
    while pairs:
        total = step(pairs.pop(), total, x2)
    return total[1]


def coarse_bound(A: Coefficients, B: Coefficients) -> mp.mpf:
    """Bound of |computed - x| where p >= P_SPLIT."""
    cells = chebyshev(P_SPLIT * (1 - P_SPLIT) - mp.mpf(2) ** -40, QUARTER, CELLS)
    worst = mp.mpf(0)
    for a, b in pairwise(cells):
        u = mp.sqrt(QUARTER - a)
        x = u * coarse(a)
        slope = 1 / density(x)
        word = 2 * U * slope
        argument = U / 4 * (slope - x / u) / (2 * u)
        roundings = x * (rounding(A, b) + rounding(B, b) + 2 * U)
        fit = FIT_MARGIN * abs(u * horner(A, a) / horner(B, a) - x)
        worst = max(worst, word + argument + roundings + fit)
    return worst * (1 + mp.mpf(2) ** -20)


def fine_bound(A: Coefficients, B: Coefficients) -> list[tuple[mp.mpf, mp.mpf]]:
    """Pairs x, bound of |computed - x| up to it, what was not read of U left out."""
    cells = chebyshev(mp.mpf(0), -mp.log(2 * P_LAST), CELLS)
    bounds = []
    for a, b in pairwise(cells):
        low, x = a * fine(a), b * fine(b)
        mills = mp.exp(-a) / 2 / density(low)  # dx / d(-ln p), which decreases
        log = (mp.mpf("3.5") * (b + mp.log(2)) + 5) * U
        roundings = x * (rounding(A, b) + rounding(B, b) + 3 * U)
        fit = FIT_MARGIN * abs(b * horner(A, b) / horner(B, b) - x)
        bounds.append((low, (log * mills + roundings + fit) * (1 + mp.mpf(2) ** -20)))
    return bounds


def c_array(name: str, values: Coefficients) -> str:
    rows = ",\n".join(f"    {float(v).hex()}" for v in values)
    return f"static const double {name}[] = {{\n{rows},\n}};"


def main() -> None:
    A, B = rational_fit(
        coarse, lambda v: mp.mpf(1), P_SPLIT * (1 - P_SPLIT), QUARTER, COARSE_DEGREE
    )
    C, D = rational_fit(fine, lambda s: s + QUARTER, mp.mpf(0), -mp.log(2 * P_LAST), FINE_DEGREE)
    coarse_units = int(mp.ceil(coarse_bound(A, B) / U))
    bounds = fine_bound(C, D)
    base = int(mp.ceil(bounds[0][1] / U)) + 1
    slope = int(mp.ceil(max((bound / U - base) / x for x, bound in bounds if x > 0)))
    print("/* Made by gaussian_table.py: rational fits of Phi^-1, lowest degree first, and bounds")
    print(" * of what is computed from them. */")
    print("/* clang-format off */")
    print("#pragma once\n")
    print("/* |x| = |u| A(v) / B(v) with v = 1/4 - u^2. */")
    print(c_array("COARSE_A", A))
    print(c_array("COARSE_B", B))
    print(f"#define COARSE_ERROR ({coarse_units} * 0x1p-53)")
    print("\n/* |x| = s C(s) / D(s) with s = -ln(2 p). */")
    print(c_array("FINE_C", C))
    print(c_array("FINE_D", D))
    print("/* The bound is the first plus the second times |x|. */")
    print(f"#define FINE_ERROR ({base} * 0x1p-53)")
    print(f"#define FINE_ERROR_PER_X ({slope} * 0x1p-53)")


if __name__ == "__main__":
    main()
