"""Exactly rounded Gaussian noise from the key stream, in NumPy and Python's integers.

Written apart from the compiled kernels, from the same definitions: ChaCha20 as in RFC 8439
section 2.3 (64-bit counter and nonce), sixteen blocks side by side; |K| counts the rounding
boundaries (j - 1/2) / ratio, j >= 1, above which the upper tail probability of U lies.
"""

import hashlib
import math
from statistics import NormalDist

import numpy as np

from dpkern.reference.clip import drop_in

GAUSSIAN, GOE_DIAGONAL, GOE_OFF_DIAGONAL, USER = 1, 2, 3, 7
EXTRA = 0x8000
KEY_NONCE = 0x7FFF << 48
LAST = 14.0

_BITS = 400


def _atan_inverse(n, bits):
    total, power, k = 0, (1 << bits) // n, 0
    while power:
        total += (-1) ** k * (power // (2 * k + 1))
        power //= n * n
        k += 1
    return total


_WIDE = _BITS + 64
# Machin's formula: pi / 4 = 4 atan(1 / 5) - atan(1 / 239).
_PI = 4 * (4 * _atan_inverse(5, _WIDE) - _atan_inverse(239, _WIDE))
_SQRT_2PI = math.isqrt(2 * _PI << _WIDE)
INV_SQRT_2PI = (1 << (_WIDE + _BITS)) // _SQRT_2PI


def chacha20_blocks(key, counters, nonce):
    """Return the blocks of a 32-byte key, (len(counters), 16) uint32."""
    counters = np.asarray(counters, dtype=np.uint64)
    start = np.empty((16, len(counters)), dtype=np.uint32)
    start[0:4] = np.frombuffer(b"expand 32-byte k", dtype="<u4")[:, None]
    start[4:12] = np.frombuffer(bytes(key), dtype="<u4")[:, None]
    start[12] = counters & np.uint64(0xFFFFFFFF)
    start[13] = counters >> np.uint64(32)
    start[14] = nonce & 0xFFFFFFFF
    start[15] = nonce >> 32
    x = start.copy()

    def rotate(v, n):
        return v << np.uint32(n) | v >> np.uint32(32 - n)

    def quarter_round(a, b, c, d):
        for target, add, mix, n in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[target] += x[add]
            x[mix] = rotate(x[mix] ^ x[target], n)

    for _ in range(10):
        for i in range(4):
            quarter_round(i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            quarter_round(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return (x + start).T


def stream_words(key, nonce, n):
    """Return the first n 64-bit words of the stream: chunks of 16 interleaved blocks."""
    chunks = -(-n // 128)
    blocks = chacha20_blocks(key, np.arange(16 * chunks), nonce).reshape(chunks, 8, 2, 16)
    low, high = blocks[:, :, 0].astype(np.uint64), blocks[:, :, 1].astype(np.uint64)
    return (low | high << np.uint64(32)).transpose(0, 2, 1).reshape(-1)[:n]


def upper_tail(numerator, denominator):
    """2^_BITS Q(numerator / denominator), rounded, for quotients up to 14; within 2^-200."""
    x = (numerator << _BITS) // denominator
    z = x * x >> (_BITS + 1)
    term, total, n = x * INV_SQRT_2PI >> _BITS, 1 << (_BITS - 1), 0
    while term:
        total -= (-1) ** n * (term // (2 * n + 1))
        n += 1
        term = (term * z >> _BITS) // n
    return max(total, 0)


def reaches(k, ratio, p):
    """Return whether |K| >= k for the tail probability p 2^-192."""
    if (k - 0.5) / ratio > LAST:
        return False
    ratio_numerator, ratio_denominator = float(ratio).as_integer_ratio()
    return p < upper_tail((2 * k - 1) * ratio_denominator, 2 * ratio_numerator) >> (_BITS - 192)


def magnitude(p, ratio, low, high):
    """Return |K| in low .. high for the tail probability p 2^-192."""
    while low < high:
        middle = (low + high + 1) // 2
        if reaches(middle, ratio, p):
            low = middle
        else:
            high = middle - 1
    return low


def rounded_quantile(word, extra, ratio):
    """Return round(ratio Phi^-1(U)) for the first 64 bits of U; extra() returns its next 128."""
    negative = word < 1 << 63
    n = word if negative else (1 << 64) - 1 - word
    # The standard library's quantile (Wichura's AS 241) as a guess, with a margin for its error.
    x = -NormalDist().inv_cdf(min((n + 0.5) * 2.0**-64, 0.5))
    slack = 1e-12 + 1.0 / (n + 1)
    low = max(0, math.floor(ratio * (x - slack) + 0.5))
    high = math.floor(ratio * min(x + slack, LAST + 1.0) + 0.5)
    if n < 1 << 16:
        low, high = 0, math.floor(ratio * (LAST + 1.0))
    if low < high:
        p = word << 128 | extra()
        low = magnitude(p if negative else (1 << 192) - 1 - p, ratio, low, high)
    return -low if negative else low


def draws(key, purpose, silos, n, sigma, grid):
    """Return rows of n draws for the given silos or records, each with its sigma and grid."""
    out = np.zeros((len(silos), n))
    for row, j, s, q in zip(out, silos, sigma, grid, strict=True):
        ratio = s / q
        nonce = purpose << 48 | int(j)
        if LAST * ratio < 0.5:
            continue

        def extra(coordinate, nonce=nonce):
            block = chacha20_blocks(key, [coordinate], nonce | EXTRA << 48)[0]
            first, second = block[:4].view("<u8").tolist()
            return first << 64 | second

        for i, word in enumerate(stream_words(key, nonce, n).tolist()):
            row[i] = rounded_quantile(word, lambda i=i: extra(i), ratio) * q
    return out


def release_key(rng, number=0):
    """Return the subkey of a stream's next release, or of release `number` of a seed."""
    if hasattr(rng, "release"):
        return bytes(rng.release().key)
    seed = rng.to_bytes((rng.bit_length() + 7) // 8, "little")
    run_key = hashlib.sha256(b"dpkern noise stream seed:" + seed).digest()
    return chacha20_blocks(run_key, [number], KEY_NONCE)[0, :8].astype("<u4").tobytes()


def _scale(sigma, grid, m):
    sigma = np.broadcast_to(np.asarray(sigma, dtype=np.float64), (m,)).tolist()
    if grid is None:
        grid = [2.0 ** (math.ceil(math.log2(s)) - 26) if s else 1.0 for s in sigma]
    return sigma, np.broadcast_to(np.asarray(grid, dtype=np.float64), (m,)).tolist()


@drop_in
def gaussian(shape, sigma, *, grid=None, rng=None):
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    m = math.prod(sizes[:-1])
    sigma, grid = _scale(sigma, grid, m)
    return draws(release_key(rng), GAUSSIAN, range(m), sizes[-1], sigma, grid).reshape(sizes)


@drop_in
def goe(m, d, sigma, *, grid=None, rng=None):
    sigma, grid = _scale(sigma, grid, m)
    key = release_key(rng)
    above_sigma = [math.nextafter(s * math.sqrt(0.5), math.inf) if s else 0.0 for s in sigma]
    diagonal = draws(key, GOE_DIAGONAL, range(m), d, sigma, grid)
    above = draws(key, GOE_OFF_DIAGONAL, range(m), d * (d - 1) // 2, above_sigma, grid)
    noise = np.zeros((m, d, d))
    rows, columns = np.triu_indices(d, 1)
    noise[:, rows, columns] = noise[:, columns, rows] = above
    noise[:, range(d), range(d)] = diagonal
    return noise
