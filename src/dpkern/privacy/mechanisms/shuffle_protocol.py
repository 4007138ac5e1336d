"""The messages of the shuffle protocol with binomial noise, for sums without a trusted server.

    every vector's owner:  R(t) + Bin(b, 1/2) ones among g + b bits, for each coordinate
    the shuffler:          permutes all labelled bits
    the analyser:          counts the ones of each label, (L / g) (2 count - N (g + b))

(Lowy, Ghafelebashi, Razaviyayn 2023, Algorithms 4 and 5, with their re-centring corrected.)
`randomize`, `shuffle` and `analyze` implement the three steps on actual bits; `BinomialSum` samples
the counts directly.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern._typing import FloatArray
from dpkern.kernels.shuffle import shuffle_parameters
from dpkern.stream import NoiseStream, Purpose

Labels = NDArray[np.int64]
Bits = NDArray[np.uint8]


def randomize(
    V: ArrayLike, *, bound: float, g: int, b: int, rng: int | NoiseStream | None = None
) -> Bits:
    """Return the messages of N users: bits of shape (N, d, g + b), labelled by the second axis.

    A user's R(t) + Bin(b, 1/2) ones are the first R(t) bits and the coins. Arguments and errors are
    those of `kernels.shuffle_sum`, whose counts have the same distribution, and are equal for the
    same release of a stream if N b < 4096. The memory is N d (g + b) bytes.
    """
    vectors: FloatArray = np.array(V, dtype=np.float64)
    if vectors.ndim != 2 or not vectors.size:
        raise ValueError(f"V must have shape (N, d), N, d >= 1, got {vectors.shape}")
    n, d = vectors.shape
    bound, g, b = shuffle_parameters(n, d, bound, g, b)
    with np.errstate(all="ignore"):
        norms = np.sqrt(np.square(vectors).sum(axis=1) + d * 2.0**-240)
        factors = np.minimum(1.0, bound * (1.0 - (4 * d + 64) * 2.0**-52) / norms)
    lost = ~np.isfinite(norms)
    vectors[lost], factors[lost] = 0.0, 1.0
    t = (factors[:, np.newaxis] * vectors + bound) * (g / (2.0 * bound))
    whole = np.floor(t)
    stream = rng if isinstance(rng, NoiseStream) else NoiseStream(rng)
    with stream.release() as release:
        uniform = (release.words(Purpose.ROUNDING, n * d) >> np.uint64(12)) * 2.0**-52
        rounded = whole + (uniform.reshape(n, d) < t - whole)
        bits = np.empty((n, d, g + b), dtype=np.uint8)
        bits[:, :, :g] = np.arange(g) < rounded[:, :, np.newaxis]
        for k in range(d):
            words = release.words(Purpose.BINOMIAL, -(-n * b // 64), k)
            coins = np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")
            bits[:, k, g:] = coins[: n * b].reshape(n, b)
    return bits


def shuffle(messages: Bits, *, rng: int | NoiseStream | None = None) -> tuple[Labels, Bits]:
    """Return the labels and the bits of all messages, in one random order.

    The order is that of random words of 64 bits, by a stable sort.
    """
    labels = np.broadcast_to(np.arange(messages.shape[1])[:, np.newaxis], messages.shape).ravel()
    stream = rng if isinstance(rng, NoiseStream) else NoiseStream(rng)
    with stream.release() as release:
        order = np.argsort(release.words(Purpose.SHUFFLE, messages.size), kind="stable")
    return labels[order], messages.ravel()[order]


def analyze(
    labels: Labels, bits: Bits, *, n: int, dim: int, bound: float, g: int, b: int
) -> FloatArray:
    """Return the estimate of the sum, shape (dim,), from the shuffled messages of n users."""
    bound, g, b = shuffle_parameters(n, dim, bound, g, b)
    if len(labels) != n * dim * (g + b) or len(bits) != len(labels):
        raise ValueError(
            f"labels and bits must be {n * dim * (g + b)} each, g + b of each of {n} users for "
            f"each of {dim} coordinates, got {len(labels)} and {len(bits)}"
        )
    ones = np.bincount(labels[bits != 0], minlength=dim)
    return np.asarray((2 * ones - n * (g + b)) * (bound / g), dtype=np.float64)
