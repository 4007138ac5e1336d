"""Newton directions: reference, truncated system, floor, scale, threads, forks, bad input."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cases import for_each
from makers import assert_refused
from pairwise import pairwise

from dpkern import _threads, kernels
from dpkern import reference as ref

FLOOR = 0.25
SIZES = [(1, 1), (3, 2), (4, 7), (3, 64), (2, 200)]
U = 2.0**-53


def matrices(m, d, spectrum, seed=0):
    """m symmetric matrices with these eigenvalues and random eigenvectors, and m vectors."""
    rng = np.random.default_rng(seed)
    V = np.linalg.qr(rng.standard_normal((m, d, d)))[0]
    H = np.einsum("jik,k,jlk->jil", V, spectrum(rng, d), V)
    return (H + H.transpose(0, 2, 1)) / 2, rng.standard_normal((m, d))


SPECTRA = {
    "well-conditioned": lambda rng, d: rng.uniform(0.5, 2.0, d),
    "ill-conditioned": lambda rng, d: FLOOR * np.logspace(0.01, 10, d),
    "indefinite": lambda rng, d: rng.uniform(-3.0, 3.0, d),
    "at the floor": lambda rng, d: np.full(d, FLOOR),
    "partly at the floor": lambda rng, d: np.where(np.arange(d) % 2, FLOOR, 1.0),
    "one just below": lambda rng, d: np.where(np.arange(d) == 0, FLOOR * (1 - 1e-6), 1.0),
    # All that is truncated, but for a single eigenvalue that an interval above the floor must find.
    "one just above": lambda rng, d: np.where(np.arange(d) == 0, FLOOR * (1 + 1e-6), 0.0),
    "all below": lambda rng, d: rng.uniform(-5.0, 0.9 * FLOOR, d),
    "zero": lambda rng, d: np.zeros(d),
}


def truncated(H, floor):
    lam, V = np.linalg.eigh(H)
    return (V * np.maximum(lam, floor)) @ V.T


@pairwise("isa", size=SIZES, spectrum=SPECTRA)
def test_direction_agrees_with_its_reference(size, spectrum):
    m, d = size
    H, g = matrices(m, d, spectrum)
    p, by_numpy = (module.newton_direction(H, g, floor=FLOOR) for module in (kernels, ref))
    for ours, theirs, matrix in zip(p, by_numpy, H, strict=True):
        condition = max(1.0, np.linalg.norm(matrix, 2) / FLOOR)
        assert np.linalg.norm(ours - theirs) <= 20 * d * U * condition * np.linalg.norm(theirs)


@for_each("spectrum", SPECTRA.values(), ids=SPECTRA)
def test_direction_solves_the_truncated_system(spectrum):
    for m, d in SIZES:
        H, g = matrices(m, d, spectrum, seed=1)
        directions = kernels.newton_direction(H, g, floor=FLOOR)
        for p, matrix, gradient in zip(directions, H, g, strict=True):
            K = truncated(matrix, FLOOR)
            scale = np.linalg.norm(K, 2) * np.linalg.norm(p) + np.linalg.norm(gradient)
            assert np.linalg.norm(K @ p - gradient) <= 20 * d * U * scale
            assert np.linalg.norm(p) <= np.linalg.norm(gradient) / FLOOR * (1 + 1e-8)


def test_a_diagonal_matrix_is_truncated_entry_by_entry():
    lam = np.array([-1e3, 0.0, 0.1, 0.5, 4.0])
    g = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    for floor in (1e-3, 0.1, 0.3, 10.0):
        p = kernels.newton_direction(np.diag(lam)[None], g[None], floor=floor)[0]
        np.testing.assert_allclose(p, g / np.maximum(lam, floor), rtol=1e-12)


def test_above_the_floor_nothing_depends_on_it():
    """Cholesky of H itself solves the system, not that of the shifted matrix."""
    H, g = matrices(3, 20, SPECTRA["well-conditioned"])
    at_one = kernels.newton_direction(H, g, floor=0.1)
    np.testing.assert_array_equal(kernels.newton_direction(H, g, floor=0.2), at_one)
    np.testing.assert_allclose(at_one, np.linalg.solve(H, g[..., None])[..., 0], rtol=1e-12)


@for_each("case", ["well-conditioned", "indefinite"])
def test_only_the_lower_triangle_is_read(case):
    H, g = matrices(3, 9, SPECTRA[case])
    p = kernels.newton_direction(H, g, floor=FLOOR)
    H[:, *np.triu_indices(9, 1)] = math.nan
    np.testing.assert_array_equal(kernels.newton_direction(H, g, floor=FLOOR), p)


@for_each("case", ["well-conditioned", "indefinite"])
@for_each("exponent", [-900, -500, 500, 900])
def test_powers_of_two_on_both_sides_cancel_at_any_magnitude(case, exponent):
    H, g = matrices(2, 12, SPECTRA[case])
    p = kernels.newton_direction(H, g, floor=FLOOR)
    far = kernels.newton_direction(np.ldexp(H, exponent), g, floor=math.ldexp(FLOOR, exponent))
    np.testing.assert_array_equal(np.ldexp(far, exponent), p)


def test_a_floor_far_from_the_matrix_is_no_trouble():
    H, g = matrices(2, 6, SPECTRA["indefinite"])
    np.testing.assert_allclose(
        kernels.newton_direction(H * 1e-320, g, floor=1e300), g / 1e300, rtol=1e-12
    )
    p = kernels.newton_direction(np.zeros((1, 3, 3)), np.ones((1, 3)), floor=1e-310)
    np.testing.assert_array_equal(p, np.inf)
    assert np.all(np.isfinite(kernels.newton_direction(H @ H * 1e300, g, floor=5e-324)))


@for_each("case", ["well-conditioned", "indefinite"])
@for_each("d", [7, 130])
def test_same_bits_for_any_threads(case, d):
    H, g = matrices(9, d, SPECTRA[case])
    alone = kernels.newton_direction(H, g, floor=FLOOR, n_threads=1)
    for n_threads in (None, 2, 3, 7):
        again = kernels.newton_direction(H, g, floor=FLOOR, n_threads=n_threads)
        np.testing.assert_array_equal(again, alone)
    for j in range(9):
        one = kernels.newton_direction(H[j : j + 1], g[j : j + 1], floor=FLOOR)
        np.testing.assert_array_equal(one[0], alone[j])


def test_concurrent_calls_agree_and_leave_the_threads_of_blas_as_they_were():
    libraries = _threads._blas_libraries()
    if not libraries:
        pytest.skip("no BLAS that threadpoolctl knows")
    H, g = matrices(6, 60, SPECTRA["indefinite"])
    alone = kernels.newton_direction(H, g, floor=FLOOR, n_threads=1)

    def work(n_threads):
        for _ in range(20):
            again = kernels.newton_direction(H, g, floor=FLOOR, n_threads=n_threads)
            np.testing.assert_array_equal(again, alone)
        return True

    before = [lib.get_num_threads() for lib in libraries]
    try:
        for lib in libraries:
            lib.set_num_threads(2)
        with _threads.one_blas_thread(), _threads.one_blas_thread():
            assert all(lib.get_num_threads() == 1 for lib in libraries)
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, (1, 2, 1, 2)))
        assert all(lib.get_num_threads() == 2 for lib in libraries)
        with pytest.raises(ValueError, match="H must be finite"):
            kernels.newton_direction(H + math.nan, g, floor=FLOOR)
        assert all(lib.get_num_threads() == 2 for lib in libraries)
    finally:
        for lib, threads in zip(libraries, before, strict=True):
            lib.set_num_threads(threads)


def spoiled(value):
    H = np.zeros((3, 4, 4))
    H[1, 2, 1] = value
    return H


BAD_INPUT = [
    ({"H": spoiled(math.nan)}, "H must be finite"),
    ({"H": spoiled(-math.inf)}, "H must be finite"),
    ({"H": np.eye(4)}, r"H must have shape \(m, d, d\)"),
    ({"H": np.zeros((3, 4, 5))}, r"H must have shape \(m, d, d\)"),
    ({"H": np.zeros((0, 4, 4))}, r"H must have shape \(m, d, d\)"),
    ({"H": np.zeros((3, 4, 4), complex)}, "TypeError: H must be real"),
    ({"g": np.full((3, 4), math.nan)}, "g must be finite"),
    ({"g": np.ones((3, 3))}, r"g must have shape \(3, 4\)"),
    ({"g": np.ones(4)}, r"g must have shape \(3, 4\)"),
    ({"g": "ones"}, "TypeError: g must be real"),
    *(({"floor": floor}, "floor must be positive") for floor in (0.0, -1.0, math.nan, math.inf)),
    ({"floor": None}, "TypeError: floor must be"),
    ({"floor": True}, "TypeError: floor must be"),
    ({"n_threads": 0}, "n_threads must be"),
]


@for_each(("how", "message"), BAD_INPUT)
def test_bad_input_is_refused_by_name(how, message):
    given = {"H": np.zeros((3, 4, 4)), "g": np.ones((3, 4)), "floor": 0.5} | how
    assert_refused(message, kernels.newton_direction, given.pop("H"), given.pop("g"), **given)


def test_inputs_of_any_real_dtype_and_order_are_taken_and_left_alone():
    H, g = matrices(3, 5, SPECTRA["indefinite"])
    H, g = np.rint(8 * H), np.rint(8 * g)
    kept = H.copy(), g.copy()
    p = kernels.newton_direction(H, g, floor=0.5)
    for kind in (np.float32, np.int64):
        ours = kernels.newton_direction(
            np.asfortranarray(H.astype(kind)), g.astype(kind), floor=0.5
        )
        np.testing.assert_array_equal(ours, p)
    np.testing.assert_array_equal(H, kept[0])
    np.testing.assert_array_equal(g, kept[1])


@for_each("d", [2, 5, 8, 40])
def test_where_every_eigenvalue_is_below_the_floor_the_gradient_is_divided_by_it(d):
    """In memory that others have written to: LAPACK reads some of it for an empty interval."""
    rng = np.random.default_rng(d)
    rows = rng.standard_normal((d, d)) / d
    H, g = (rows @ rows.T)[np.newaxis], rng.standard_normal((1, d))
    floor = 1.5 * float(np.linalg.norm(H[0], 2))
    for k in range(100):
        used = [np.full(size, -(2**31) + k, dtype=np.intc) for size in range(12 * d, 12 * d + 8)]
        del used
        p = kernels.newton_direction(H, g, floor=floor, n_threads=1)
        np.testing.assert_allclose(p, g / floor, rtol=1e-12)
