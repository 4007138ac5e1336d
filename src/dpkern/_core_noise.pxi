cdef class Key:
    """A 256-bit key for C; wiped on deallocation."""
    cdef uint32_t[8] words

    def __init__(self, const uint8_t[::1] key):
        if key.shape[0] != 32:
            raise ValueError(f"a key has 32 bytes, got {key.shape[0]}")
        memcpy(self.words, &key[0], 32)

    def __dealloc__(self):
        dpk_wipe(self.words, 32)


cdef class Keys:
    """256-bit keys of several releases for C, one after the other; wiped on deallocation."""
    cdef uint32_t *words
    cdef size_t size

    def __cinit__(self, intptr_t count):
        self.size = 32 * count
        self.words = <uint32_t *> PyMem_Malloc(max(1, self.size))
        if self.words == NULL:
            raise MemoryError()

    def add(self, intptr_t i, const uint8_t[::1] keys):
        """Copy whole keys to the places from i on."""
        if keys.shape[0] % 32 != 0 or 32 * i + keys.shape[0] > <intptr_t> self.size:
            raise ValueError(f"keys must have 32 bytes each, got {keys.shape[0]} in all")
        memcpy(self.words + 8 * i, &keys[0], keys.shape[0])

    def __dealloc__(self):
        if self.words != NULL:
            dpk_wipe(self.words, self.size)
            PyMem_Free(self.words)


def chacha20_keys(key, uint64_t counter, uint64_t nonce, uint8_t[::1] out):
    """Write the first 32 bytes of consecutive blocks to `out`."""
    cdef Key k = Key(key)
    cdef uint64_t[DPK_CHUNK_WORDS] chunk
    cdef uint64_t c
    cdef uint32_t word
    cdef intptr_t i, j
    if out.shape[0] % 32 != 0:
        raise ValueError(f"out must hold 32 bytes for each block, got {out.shape[0]}")
    for i in range(out.shape[0] // 32):
        c = counter + <uint64_t> i
        if i == 0 or c % 16 == 0:
            kernels.chacha20_chunks(k.words, nonce, c // 16, 1, chunk)
        for j in range(8):  # word j of block c, as a chunk has it (chacha20.h)
            word = <uint32_t> (chunk[8 * j + c % 16 // 2] >> 32 * (c % 2))
            memcpy(&out[32 * i + 4 * j], &word, 4)
    dpk_wipe(chunk, sizeof(chunk))
    dpk_wipe(&word, sizeof(word))


def chacha20_block(key, uint64_t counter, uint64_t nonce,
                   uint8_t[::1] out):
    """Write the 64 bytes of one block to `out`."""
    cdef Key k = Key(key)
    cdef uint32_t[16] block
    if out.shape[0] != 64:
        raise ValueError(f"out must hold 64 bytes, got {out.shape[0]}")
    kernels.chacha20_block(k.words, counter, nonce, block)
    memcpy(&out[0], block, 64)
    dpk_wipe(block, 64)


def chacha20_chunks(key, uint64_t nonce, uint64_t chunk, uint64_t[::1] out):
    """Fill `out`, which has whole chunks, with the stream from chunk number `chunk` on."""
    cdef Key k = Key(key)
    cdef size_t n_chunks = out.shape[0] // DPK_CHUNK_WORDS
    kernels.chacha20_chunks(k.words, nonce, chunk, n_chunks, first(out))


def gaussian(key, uint32_t purpose, const double[::1] sigma,
             const double[::1] grid, double[:, ::1] out, int n_threads, int path=DPK_PATH_FAST):
    cdef Key k = Key(key)
    cdef intptr_t m = out.shape[0], n = out.shape[1]
    check(dpk_check_rounding(n_threads))
    if m == 0 or n == 0:
        return
    with nogil:
        check(kernels.gaussian(
            k.words, purpose, m, n, first(sigma), first(grid), <dpk_path> path, n_threads,
            at(&out[0, 0])))


def gaussian_words(key, uint64_t nonce, const uint64_t[::1] words,
                   const uint64_t[:, ::1] extra, double ratio, int path, double[::1] out,
                   uint8_t[::1] decided_by, const int64_t[::1] silo=None):
    """For tests: draws from given bits of U, and which step decided each; see gaussian.h."""
    cdef int each = 0 if silo is None else words.shape[0] // silo.shape[0]
    cdef Key k = Key(key)
    cdef const uint64_t *rest = NULL if extra is None else at(&extra[0, 0])
    check(dpk_check_rounding(1))
    check(kernels.gaussian_words(k.words, nonce, first(silo), each, first(words), rest,
                                 words.shape[0], ratio, <dpk_path> path, first(out),
                                 &decided_by[0]))


def goe(const double[:, ::1] diagonal, const double[:, ::1] above, double[:, :, ::1] out,
        int n_threads):
    cdef intptr_t m = out.shape[0], d = out.shape[1]
    cdef const double[::1] upper = np.asarray(above).reshape(-1)
    if m == 0 or d == 0:
        return
    with nogil:
        check(kernels.goe(m, d, at(&diagonal[0, 0]), first(upper), n_threads, at(&out[0, 0, 0])))


cdef class CoinLaw:
    """A binomial distribution, or None; see shuffle.h."""
    cdef dpk_coin_law c
    cdef object keep

    def __init__(self, law):
        self.keep = top, rest, guide = (None, None, None) if law is None else law
        self.c.top, self.c.rest = first[uint64_t](top), first[uint64_t](rest)
        self.c.guide = first[int64_t](guide)


def shuffle_sum(key, uint32_t rounding, uint32_t noise, const double[:, ::1] V,
                double bound, int64_t g, int64_t b, many, few, int64_t[::1] count, int n_threads):
    """Compute the analyser's counts; see shuffle.h. many, few: as CoinLaw takes them."""
    cdef Key k = Key(key)
    cdef intptr_t n = V.shape[0], d = V.shape[1]
    cdef CoinLaw of_many = CoinLaw(many), of_few = CoinLaw(few)
    cdef double[::1] partial = aligned(n_threads * dpk_thread_stride(d))
    check(dpk_check_rounding(n_threads))
    with nogil:
        check(kernels.shuffle_sum(
            k.words, rounding, noise, n, d, at(&V[0, 0]), bound, g, b, &of_many.c, &of_few.c,
            n_threads, first(partial), first(count)))


cdef int64_t total_of(const int64_t[::1] offsets, const int64_t[::1] counts) except -1:
    """Return the sum of the counts; raise unless each is one of that silo's numbers."""
    cdef intptr_t j
    cdef int64_t total = 0
    for j in range(counts.shape[0]):
        if not 0 <= counts[j] <= offsets[j + 1] - offsets[j]:
            raise ValueError("counts must be at least 0 and at most the numbers to draw from")
        total += counts[j]
    return total


cdef int64_t words_of(const int64_t[::1] offsets, const int64_t[::1] counts):
    """Return the words of work space for subsets of these sizes."""
    cdef intptr_t j
    cdef int64_t words = 0
    for j in range(counts.shape[0]):
        if counts[j] > 0:
            words = max(words, dpk_subset_words(offsets[j + 1] - offsets[j], counts[j]))
    return words


def subsets(key, uint32_t purpose, const int64_t[::1] offsets,
            const int64_t[::1] counts):
    """Return counts[j] of the numbers offsets[j] .. offsets[j + 1] - 1 for every j, and where each
    subset begins and ends; see sampling.h."""
    cdef Key k = Key(key)
    cdef intptr_t m = counts.shape[0]
    first(offsets)
    first(counts)
    bounds = np.append(0, np.cumsum(counts))
    out = np.empty(total_of(offsets, counts), dtype=np.int64)
    cdef uint64_t[::1] work = np.empty(words_of(offsets, counts), dtype=np.uint64)
    cdef int64_t[::1] numbers = out
    with nogil:
        check(kernels.subsets(
            k.words, purpose, m, first(offsets), first(counts), first(work), first(numbers)))
    return out, bounds


def poisson_samples(key, uint32_t purpose, const int64_t[::1] offsets,
                    const uint64_t[::1] last):
    """Return the samples, and where each silo's begins and ends, as `subsets`; see sampling.h."""
    cdef Key k = Key(key)
    cdef intptr_t m = last.shape[0]
    first(offsets)
    bounds, out = np.empty(m + 1, np.int64), np.empty(offsets[m] - offsets[0], np.int64)
    cdef int64_t[::1] ends = bounds, numbers = out
    with nogil:
        check(kernels.poisson_samples(
            k.words, purpose, m, first(offsets), first(last), first(numbers), first(ends)))
    return out[:bounds[m]], bounds
