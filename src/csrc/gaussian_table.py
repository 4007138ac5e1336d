"""Makes gaussian_table.h: the rational fits of Phi^-1 and the proven bounds of their errors.

Run `python gaussian_table.py > gaussian_table.h` (needs mpmath). The derivation of the bounds is
in gaussian.c; this program evaluates them cell by cell, each term at the end of the cell where it
is largest.
"""

from collections.abc import Callable
from itertools import pairwise

import mpmath as mp

mp.mp.dps = 90
U = mp.mpf(2) ** -53
HALF, QUARTER = mp.mpf(1) / 2, mp.mpf(1) / 4

DEGREE = 11  # of every polynomial, as DPK_POLYNOMIAL in gaussian.c evaluates it
P_SPLIT = mp.mpf(2) ** -6  # central where the smaller tail probability is at least this
P_LAST = mp.mpf(2) ** -50  # beyond it the slow path decides
LOG_SHIFT = mp.mpf(float(6 * mp.log(2)))  # tail variable: -ln p - LOG_SHIFT

Function = Callable[[mp.mpf], mp.mpf]
Coefficients = list[mp.mpf]
Term = tuple[mp.mpf, mp.mpf]  # value, bound of its relative error


def quantile(p: mp.mpf) -> mp.mpf:
    """x > 0 with Q(x) = p, for 0 < p < 1/2."""
    guess = mp.sqrt(2) * mp.erfinv(1 - 2 * p) if p > 1e-9 else mp.sqrt(-2 * mp.log(p)) - 0.4
    return mp.findroot(lambda x: mp.log(mp.erfc(x / mp.sqrt(2)) / 2) - mp.log(p), guess)


def density(x: mp.mpf) -> mp.mpf:
    return mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi)


def central(v: mp.mpf) -> mp.mpf:
    """x / u at v = 1/4 - u^2."""
    u = mp.sqrt(QUARTER - v)
    return quantile(HALF - u) / u if u > 1e-12 else mp.sqrt(2 * mp.pi)


def tail(s: mp.mpf) -> mp.mpf:
    return quantile(mp.exp(-s - LOG_SHIFT))


def chebyshev(a: mp.mpf, b: mp.mpf, count: int) -> list[mp.mpf]:
    return [(a + b) / 2 - (b - a) / 2 * mp.cos(mp.pi * i / (count - 1)) for i in range(count)]


def horner(coefficients: Coefficients, x: mp.mpf) -> mp.mpf:
    return mp.polyval(coefficients[::-1], x)


def rational_fit(
    f: Function, a: mp.mpf, b: mp.mpf, degree: int, rounds: int = 14
) -> tuple[Coefficients, Coefficients]:
    """Nearly minimax A/B of equal degrees: linearised least squares with Lawson's weights."""
    points = chebyshev(a, b, 12 * (degree + 1))
    values = [f(x) for x in points]
    lawson = [mp.mpf(1)] * len(points)
    denominator = [mp.mpf(1)] * len(points)
    best = None
    for i in range(rounds):
        M = mp.matrix(len(points), 2 * degree + 1)
        rhs = mp.matrix(len(points), 1)
        for row, (x, y) in enumerate(zip(points, values, strict=True)):
            scale = mp.sqrt(lawson[row]) / denominator[row]
            for j in range(degree + 1):
                M[row, j] = scale * x**j
                if j:
                    M[row, degree + j] = -scale * y * x**j
            rhs[row] = scale * y
        solution = list(mp.lu_solve(M, rhs))
        A, B = solution[: degree + 1], [mp.mpf(1), *solution[degree + 1 :]]
        denominator = [horner(B, x) for x in points]
        errors = [abs(y - horner(A, x) / horner(B, x)) for x, y in zip(points, values, strict=True)]
        worst = max(errors)
        if best is None or worst < best[0]:
            best = worst, A, B
        if i >= 4:
            mean = mp.fsum(lawson) / len(lawson)
            lawson = [
                w / mean * (e / worst) + mp.mpf(10) ** -30
                for w, e in zip(lawson, errors, strict=True)
            ]
    assert best is not None
    A, B = ([mp.mpf(float(c)) for c in best[i]] for i in (1, 2))
    assert min(A + B) > 0, "the rounding bound needs positive coefficients"
    return A, B


def rounding(coefficients: Coefficients, x: mp.mpf) -> mp.mpf:
    """Bound of the relative rounding error of a polynomial evaluated as in gaussian.c.

    Pairs, then pairs of pairs, then Horner's rule in x^4; product and sum rounded apart. With
    positive coefficients and x >= 0 it grows with x.
    """

    def step(low: Term, high: Term, power: Term) -> Term:
        product = high[0] * power[0]
        value = low[0] + product
        error = (1 + high[1]) * (1 + power[1]) * (1 + U) - 1
        return value, ((low[0] * low[1] + product * error) / value) * (1 + U) + U

    x1, x2 = (x, mp.mpf(0)), (x * x, U)
    x4 = x**4, (1 + U) ** 3 - 1
    exact = [(c, mp.mpf(0)) for c in coefficients]
    pairs = [step(exact[i], exact[i + 1], x1) for i in range(0, 12, 2)]
    fours = [step(pairs[i], pairs[i + 1], x2) for i in range(0, 6, 2)]
    return step(fours[0], step(fours[1], fours[2], x4), x4)[1]


def central_bound(A: Coefficients, B: Coefficients) -> mp.mpf:
    cells = chebyshev(P_SPLIT * (1 - P_SPLIT) - mp.mpf(2) ** -50, QUARTER, 1500)
    worst = mp.mpf(0)
    for a, b in pairwise(cells):
        u = mp.sqrt(QUARTER - a)
        x = u * central(a)
        slope = 1 / density(x)
        word = U * slope
        argument = U / 4 * (slope - x / u) / (2 * u)
        roundings = x * (rounding(A, b) + rounding(B, b) + 3 * U)
        fit = 2 * abs(u * horner(A, a) / horner(B, a) - x)
        worst = max(worst, word + argument + roundings + fit)
    return worst * (1 + mp.mpf(2) ** -20)


def tail_bound(A: Coefficients, B: Coefficients) -> mp.mpf:
    last = -mp.log(P_LAST) - LOG_SHIFT
    cells = chebyshev(mp.mpf(0), last, 1500)
    worst = mp.mpf(0)
    for a, b in pairwise(cells):
        x = tail(b)
        # -ln p: p itself 2 u; ln 2 and its product, then two subtractions; ln m (gaussian.c).
        log = 2 * U + mp.mpf("3.5") * U * (b + LOG_SHIFT) + 4 * U
        roundings = x * (rounding(A, b) + rounding(B, b) + 2 * U)
        fit = 2 * abs(horner(A, b) / horner(B, b) - x)
        worst = max(worst, log / tail(a) + roundings + fit)
    return worst * (1 + mp.mpf(2) ** -20)


def c_array(name: str, values: Coefficients) -> str:
    rows = ",\n".join(f"    {float(v).hex()}" for v in values)
    return f"static const double {name}[] = {{\n{rows},\n}};"


def main() -> None:
    A, B = rational_fit(central, P_SPLIT * (1 - P_SPLIT), QUARTER, DEGREE)
    C, D = rational_fit(tail, mp.mpf(0), -mp.log(P_LAST) - LOG_SHIFT, DEGREE)
    print(
        "/* Made by gaussian_table.py: rational fits of Phi^-1, lowest degree first, and bounds of"
    )
    print(" * what the fast path computes from them. */")
    print("/* clang-format off */")
    print("#ifndef DPK_GAUSSIAN_TABLE_H\n#define DPK_GAUSSIAN_TABLE_H\n")
    print("/* |x| = |u| A(v) / B(v) with v = 1/4 - u^2. */")
    print(c_array("CENTRAL_A", A))
    print(c_array("CENTRAL_B", B))
    print("\n/* |x| = C(s) / D(s) with s = -ln p - LOG_SHIFT. */")
    print(f"#define LOG_SHIFT {float(LOG_SHIFT).hex()}")
    print(c_array("TAIL_C", C))
    print(c_array("TAIL_D", D))
    for name, bound in (("CENTRAL", central_bound(A, B)), ("TAIL", tail_bound(C, D))):
        units = int(mp.ceil(bound / U))
        print(f"\n#define {name}_ERROR ({units} * 0x1p-53)")
    print("\n#endif")


if __name__ == "__main__":
    main()
