def clip_and_sum(G, const int64_t[::1] offsets, double clip, const double[::1] grid,
                 double[:, ::1] out, int n_threads):
    cdef dpk_data data
    cdef intptr_t d = out.shape[1], task_rows = max(64, (1 << 16) // d), shares = 1
    if grid is not None and d > DPK_WIDE:
        task_rows, shares = G.shape[0], n_threads
    elif grid is not None:
        # Exact sums may be split by the number of threads, into few long partial sums.
        task_rows = max(task_rows, G.shape[0] // (1 if n_threads == 1 else 4 * n_threads))
    cdef Work work = work_of(offsets, task_rows, d, n_threads, clip, grid, None, shares)
    memset(&data, 0, sizeof(data))
    data.X = floats(G.reshape(-1))
    data.x_is_float32 = G.dtype == np.float32
    data.m, data.p, data.d = offsets.shape[0] - 1, d, d
    data.offsets = first(offsets)
    with nogil:
        check(kernels.clip_and_sum(&data, &work.c, at(&out[0, 0])))


def glm_norms(data, double[::1] out, int n_threads):
    cdef Records records = Records(data)
    cdef Work work = work_of(records.offsets, records.task_rows(), 0, n_threads)
    with nogil:
        check(kernels.glm_norms(&records.c, &work.c, first(out)))


def glm_margins(data, const double[:, ::1] w, double[::1] out, int n_threads):
    cdef Models models = models_of(w)
    cdef Records records = Records(data)
    cdef Work work = work_of(records.offsets, records.task_rows(), 0, n_threads)
    with nogil:
        check(kernels.glm_margins(&records.c, models.c, models.stride, &work.c, first(out)))


def glm_losses(data, const double[:, ::1] w, Loss loss, double[::1] out, int n_threads):
    cdef Models models = models_of(w)
    cdef Records records = Records(data)
    cdef Work work = work_of(records.offsets, records.task_rows(), 1, n_threads)
    with nogil:
        check(kernels.glm_losses(
            &records.c, models.c, models.stride, &loss.c, &work.c, first(out)))


def glm_gradient(data, const double[:, ::1] w, Loss loss, double clip,
                 const double[::1] grid, const double[::1] silo_weight, rows,
                 double[:, ::1] out, int n_threads):
    cdef Models models = models_of(w)
    cdef Records records = Records(data, rows)
    cdef Work work = work_of(records.offsets, records.task_rows(), out.shape[1], n_threads, clip,
                             grid, silo_weight)
    with nogil:
        check(kernels.glm_gradient(
            &records.c, models.c, models.stride, &loss.c, NULL, &work.c, at(&out[0, 0])))


def ordinal_gradient(data, const double[:, ::1] w, double unit, Loss loss, double clip,
                     const double[::1] grid, const double[::1] silo_weight, rows,
                     double[:, ::1] out, int n_threads):
    cdef Models models = models_of(w)
    cdef Records records = Records(data, rows)
    cdef intptr_t thresholds = out.shape[1] - records.c.p
    cdef Work work = work_of(records.offsets, records.task_rows(), out.shape[1], n_threads, clip,
                             grid, silo_weight)
    with nogil:
        check(kernels.ordinal_gradient(
            &records.c, models.c, models.stride, thresholds, unit, &loss.c, &work.c,
            at(&out[0, 0])))


def glm_person_gradient(data, const double[:, ::1] w, Loss loss, double clip,
                        const double[::1] grid, const double[::1] silo_weight,
                        const int64_t[::1] offsets, const int64_t[::1] silos, double person_clip,
                        int64_t few, double[:, ::1] out, int n_threads):
    """offsets: (P + 1,) of persons in records; silos: (m + 1,) of silos in persons."""
    cdef Models models = models_of(w)
    cdef Records records = Records(data)
    cdef intptr_t count = offsets.shape[0] - 1
    # As many records on average as other units of work have.
    cdef intptr_t task_rows = max(1, records.task_rows() * count // max(1, offsets[count]))
    cdef Work work = work_of(silos, task_rows, out.shape[1], n_threads, clip, grid, silo_weight)
    cdef double[::1] scratch = aligned(
        work.c.n_threads * dpk_thread_stride(dpk_persons_scratch(&records.c)))
    cdef dpk_persons persons
    persons.silos, persons.offsets = first(silos), first(offsets)
    persons.clip, persons.few = person_clip, few
    with nogil:
        check(kernels.glm_person_gradient(
            &records.c, models.c, models.stride, &loss.c, &persons, &work.c, first(scratch),
            at(&out[0, 0])))


cdef dpk_models several(Models w, intptr_t count, intptr_t m, intptr_t d,
                        const double[::1] clip, const double[:, ::1] grid):
    """`count` models of one row each, or of one row per silo. Points into the arguments."""
    cdef dpk_models models
    cdef bint per_silo = w.values.shape[0] != max(1, count * dpk_padded(d))
    models.count, models.w, models.clip = count, w.c, first(clip)
    models.grid = NULL if grid is None else at(&grid[0, 0])
    models.w_stride = dpk_padded(d) if per_silo else 0
    models.stride = dpk_padded(d) * (m if per_silo else 1)
    return models


cdef Work several_work(Records records, intptr_t d, int n_threads, const double[::1] silo_weight,
                       intptr_t count):
    """Work space for the sums of several models."""
    # Exact sums may be split by the number of threads, into few partial sums.
    cdef intptr_t task_rows = max(
        records.task_rows(),
        records.offsets[records.c.m] // (1 if n_threads == 1 else 8 * n_threads))
    return work_of(records.offsets, task_rows, d, n_threads, 0.0, None, silo_weight, 1, count)


def glm_gradients(data, const double[:, ::1] w, Loss loss, const double[::1] clip,
                  const double[:, ::1] grid, const double[::1] silo_weight, rows,
                  double[:, :, ::1] out, int n_threads):
    """w: one row per model, or one per model and silo."""
    cdef Models each = models_of(w)
    cdef Records records = Records(data, rows)
    cdef intptr_t count = out.shape[0], d = out.shape[2]
    cdef dpk_models models = several(each, count, records.c.m, d, clip, grid)
    cdef Work work = several_work(records, d, n_threads, silo_weight, count)
    cdef double[::1] scratch = aligned(
        work.c.n_threads * dpk_thread_stride(dpk_gradients_scratch(&records.c, count)))
    with nogil:
        check(kernels.glm_gradients(
            &records.c, &models, &loss.c, &work.c, first(scratch), at(&out[0, 0, 0])))


def glm_products(data, const double[:, ::1] w, double[::1] out, int n_threads):
    """w: one row per column of the matrix."""
    cdef Records records = Records(data)
    cdef intptr_t count = w.shape[0], d = w.shape[1]
    cdef Work work = work_of(records.offsets, records.task_rows(), 0, n_threads)
    cdef double[::1] scratch = aligned(dpk_products_scratch(d, count, work.c.n_threads))
    with nogil:
        check(kernels.glm_products(
            &records.c, count, &w[0, 0], &work.c, first(scratch), first(out)))


def glm_difference(data, const double[:, ::1] w_new, const double[:, ::1] w_old, Loss loss,
                   double clip, double gradient_clip, double curvature, const double[::1] grid,
                   const double[::1] silo_weight, rows, const double[::1] margins,
                   double[::1] new_margins, double[:, ::1] out, int n_threads):
    """margins, at w_old, and new_margins: (n,) or None."""
    cdef Models models = models_of(w_new), old_models = models_of(w_old)
    cdef Records records = Records(data, rows)
    cdef Work work = work_of(records.offsets, records.task_rows(), out.shape[1], n_threads, clip,
                             grid, silo_weight)
    cdef dpk_earlier earlier
    earlier.clip, earlier.curvature = gradient_clip, curvature
    earlier.w, earlier.w_stride = old_models.c, old_models.stride
    earlier.z, earlier.z_new = first(margins), first(new_margins)
    with nogil:
        check(kernels.glm_gradient(
            &records.c, models.c, models.stride, &loss.c, &earlier, &work.c, at(&out[0, 0])))


def glm_hessian(data, const double[:, ::1] w, Loss loss, double hess_clip, double row_grid,
                const double[::1] grid, const double[::1] silo_weight, intptr_t records,
                double[:, :, ::1] out, int n_threads):
    """row_grid: 0 for floating-point sums; records: of how many a sum is exact in doubles."""
    cdef Models models = models_of(w)
    cdef Records rows = Records(data)
    cdef intptr_t n = rows.offsets[rows.c.m], size = dpk_hessian_size(out.shape[1])
    # At most 64 units of work besides one a silo, and fewer where their matrices are large; more
    # where a unit's sum would not be exact.
    cdef intptr_t units = max(4, min(64, (1 << 23) // size))
    cdef Work work = work_of(rows.offsets, min(records, max(1024, (n + units - 1) // units)), size,
                             n_threads, hess_clip, grid, silo_weight)
    cdef double[::1] scratch = aligned(
        work.c.n_threads * dpk_thread_stride(dpk_hessian_scratch(out.shape[1])))
    with nogil:
        check(kernels.glm_hessian(
            &rows.c, models.c, models.stride, &loss.c, row_grid, &work.c, first(scratch),
            at(&out[0, 0, 0])))


def glm_hessians(data, const double[:, ::1] w, Loss loss, const double[::1] hess_clip,
                 const double[::1] row_grid, const double[:, ::1] grid,
                 const double[::1] silo_weight, intptr_t records, double[:, :, :, ::1] out,
                 int n_threads):
    """Of sparse records. w: one row per model, or one per model and silo; records: of how many a
    sum is exact in doubles."""
    cdef Models each = models_of(w)
    cdef Records rows = Records(data)
    cdef intptr_t count = out.shape[0], d = out.shape[2], n = rows.offsets[rows.c.m]
    if rows.c.indptr == NULL:
        raise ValueError("data must be sparse")
    cdef dpk_models models = several(each, count, rows.c.m, d, hess_clip, grid)
    # A task's sums are large: one task for each thread, more where its sum would not be exact.
    cdef intptr_t task_rows = min(records, max(1, (n + n_threads - 1) // n_threads))
    cdef Work work = work_of(rows.offsets, task_rows, 8 * dpk_hessians_size(d), n_threads, 0.0,
                             None, silo_weight)
    cdef double[::1] scratch = aligned(
        work.c.n_threads * dpk_thread_stride(dpk_hessians_scratch(d)))
    with nogil:
        check(kernels.glm_hessians(
            &rows.c, &models, &loss.c, first(row_grid), &work.c, first(scratch),
            at(&out[0, 0, 0, 0])))


def line_search(data, const double[:, ::1] w, const double[:, ::1] p, Loss loss,
                const double[::1] step, const double[:, ::1] bound, const double[:, ::1] grid,
                double[:, ::1] out, int n_threads):
    """bound and grid: (m, len(step)), or None for sums of losses."""
    cdef Models models = models_of(w), directions = models_of(p)
    cdef Records records = Records(data)
    cdef Work work = work_of(records.offsets, records.task_rows(), out.shape[1], n_threads)
    cdef dpk_search search
    search.count, search.step = step.shape[0], first(step)
    search.bound = NULL if bound is None else at(&bound[0, 0])
    search.grid = NULL if grid is None else at(&grid[0, 0])
    with nogil:
        check(kernels.line_search(
            &records.c, models.c, models.stride, directions.c, directions.stride, &loss.c,
            &search, &work.c, at(&out[0, 0])))


def local_descent(data, const double[:, ::1] w, Loss loss, double clip, const double[::1] grid,
                  const double[::1] step_size, intptr_t penalized, double l2,
                  double anchor, int smooth, double smooth_strength, int prox, double prox_strength,
                  const double[::1] prox_params, key, uint32_t purpose, const double[::1] sigma,
                  rows, intptr_t batch, const int64_t[::1] silos, double[:, ::1] out,
                  int n_threads):
    """smooth, prox: numbers in their tables, or -1; key: of a release, or None; rows: `batch`
    records for every step, or None and 0; silos: those that run, at least one."""
    cdef Models models = models_of(w)
    cdef Records records = Records(data, rows)
    cdef intptr_t d = out.shape[1]
    sizes = np.diff(np.asarray(records.offsets))[np.asarray(silos)]
    cdef const int64_t[::1] order = np.asarray(silos)[np.argsort(-sizes, kind="stable")]
    cdef double[::1] norms
    cdef Key k = None if key is None else Key(key)
    cdef dpk_descent run
    if records.c.norm == NULL and rows is None:
        # Computed once for all steps.
        norms = np.empty(records.offsets[records.c.m])
        glm_norms(data, norms, n_threads)
        records.c.norm = first(norms)
    # A silo is one unit of work.
    cdef Work work = work_of(records.offsets, max(1, records.offsets[records.c.m]),
                             2 * dpk_padded(d), n_threads, clip, grid)
    run.steps, run.step_size, run.batch = step_size.shape[0], first(step_size), batch
    run.penalized, run.l2, run.anchor = penalized, l2, anchor
    run.smooth = NULL if smooth < 0 else kernels.smooths[smooth].factor
    run.smooth_strength = smooth_strength
    run.prox = NULL if prox < 0 else kernels.proxes[prox].apply
    run.prox_strength, run.prox_params = prox_strength, first(prox_params)
    run.key = NULL if k is None else k.words
    run.purpose = purpose
    run.sigma = first(sigma)
    cdef double[::1] noise = np.empty(max(1, work.c.n_threads * dpk_descent_noise(&run, d)))
    with nogil:
        check(kernels.local_descent(
            &records.c, models.c, models.stride, &loss.c, &run, &work.c, first(order),
            order.shape[0], first(noise), at(&out[0, 0])))


# Samples that every thread draws at once, or so many more that they have this many numbers: tens
# of microseconds of work; a thread that would draw fewer than the last number in a run is not
# woken.
cdef int64_t SAMPLES_A_THREAD = 4, SAMPLED_A_THREAD = 1 << 13, LEAST_SAMPLED = 1 << 10
cdef int64_t SAMPLES_SPACE = 1 << 20  # most entries of an array for samples that are drawn at once


cdef class Samples:
    """Work space for the samples of rounds; counts, (m,), or last, (m,): one of them, as for
    `subsets` and `poisson_samples`; round_threads: that a round takes."""
    cdef dpk_samples c
    cdef object keep

    def __init__(self, Records records, uint32_t purpose, const int64_t[::1] counts,
                 const uint64_t[::1] last, intptr_t rounds, int n_threads, int round_threads):
        cdef intptr_t m = records.c.m, ahead = SAMPLES_A_THREAD, blocks = 1, places
        cdef int64_t[::1] tasks = np.empty(m + 1, np.int64), bounds, numbers
        cdef uint64_t[::1] words
        cdef int64_t size = records.offsets[m], n_words = 0
        if counts is not None:
            size = total_of(records.offsets, counts)
            n_words = dpk_thread_stride(words_of(records.offsets, counts))
        size = max(1, size)
        n_threads = max(1, min(n_threads, rounds, rounds * size // LEAST_SAMPLED))
        if n_threads > 1:
            ahead = max(SAMPLES_A_THREAD, SAMPLED_A_THREAD // size) * n_threads
            blocks = 2 if round_threads == 1 else 1
        ahead = min(ahead, rounds, SAMPLES_SPACE // max(blocks * size, n_words, blocks * (m + 1)))
        ahead = max(1, ahead)
        places = blocks * ahead
        numbers, words = np.empty(places * size, np.int64), np.empty(ahead * n_words, np.uint64)
        bounds = np.empty(places * (m + 1), np.int64)
        self.keep = counts, last, numbers, words, bounds, tasks
        self.c.ahead, self.c.places, self.c.room, self.c.n_words = ahead, places, size, n_words
        self.c.counts, self.c.last, self.c.purpose = first(counts), first(last), purpose
        self.c.words, self.c.numbers = first(words), first(numbers)
        self.c.bounds, self.c.first_task = first(bounds), first(tasks)
        self.c.n_threads = n_threads


def glm_descent(data, const double[:, ::1] w, Loss loss, const double[::1] clip,
                const double[:, ::1] grid, const double[::1] silo_weight, double scale,
                const double[:, ::1] step_size, const double[::1] momentum,
                const double[:, ::1] start, const double[::1] l2, intptr_t penalized, int prox,
                const double[:, ::1] gamma, const double[::1] prox_params, keys, uint32_t purpose,
                const double[::1] sigma, uint32_t sampling, const int64_t[::1] counts,
                const uint64_t[::1] last, bint saturate, double[:, :, ::1] out, int n_threads,
                int sampling_threads, int noise_threads):
    """w: one row per model, several only with grids, (models, m), a model's all equal; prox: number
    in the table, or -1; keys: of every model's releases; sigma, counts, last: or None."""
    cdef Models each = models_of(w)
    cdef Records records = Records(data)
    cdef intptr_t i, count = out.shape[0], rounds = out.shape[1], d = out.shape[2], m = records.c.m
    cdef dpk_models models = several(each, count, m, d, clip, grid)
    cdef Work work
    cdef Samples samples = None
    cdef double[::1] scratch = None, kept = None
    cdef dpk_rounds run
    cdef intptr_t n_kept = dpk_kept_rows(&records.c, records.offsets[m], rounds)
    if n_kept:
        kept = aligned(n_kept)
    if count == 1:
        work = work_of(records.offsets, records.task_rows(), d, n_threads, clip[0],
                       None if grid is None else grid[0], silo_weight)
    else:
        work = several_work(records, d, n_threads, silo_weight, count)
        scratch = aligned(
            work.c.n_threads * dpk_thread_stride(dpk_gradients_scratch(&records.c, count)))
    if counts is not None or last is not None:
        samples = Samples(records, sampling, counts, last, rounds, sampling_threads,
                          work.c.n_threads)
    check(dpk_check_rounding(noise_threads))  # samples are integers
    cdef double[::1] sums = np.empty(count * m * d), space = np.empty(2 * d)
    run.noisy, run.samples = sigma is not None, NULL if samples is None else &samples.c
    run.keys = run.noisy + (samples is not None)
    cdef Keys secret = Keys(count * rounds * run.keys)
    for i, own in enumerate(keys):
        secret.add(i * rounds * run.keys, own)
    run.rounds, run.scale, run.penalized = rounds, scale, penalized
    run.step_size, run.l2 = at(&step_size[0, 0]), first(l2)
    run.momentum, run.start = first(momentum), at(&start[0, 0])
    run.prox = NULL if prox < 0 else kernels.proxes[prox].apply
    run.gamma, run.prox_params = at(&gamma[0, 0]), first(prox_params)
    run.key, run.purpose, run.sigma = secret.words, purpose, first(sigma)
    run.saturate, run.noise_threads = saturate, noise_threads
    run.w, run.sums, run.work = <double *> each.c, first(sums), first(space)
    with nogil:
        check(kernels.glm_descent(
            &records.c, &models, &loss.c, &run, &work.c, first(scratch), first(kept),
            at(&out[0, 0, 0])), "w")


cdef int find(dict functions, str name, void *pointer) except -1:
    """Write the address of a LAPACK function with 32-bit integers."""
    capsule = functions[name]
    cdef const char *signature = PyCapsule_GetName(capsule)
    if b", int *, " not in signature:
        raise ImportError(f"scipy's {name} is {signature.decode()}; it must count in C's int")
    cdef void *function = PyCapsule_GetPointer(capsule, signature)
    memcpy(pointer, &function, sizeof(function))
    return 0


cdef class Lapack:
    """LAPACK's routines from scipy's Cython interface, for C."""
    cdef dpk_lapack c

    def __init__(self):
        from scipy.linalg import cython_blas, cython_lapack

        lapack, blas = cython_lapack.__pyx_capi__, cython_blas.__pyx_capi__
        find(lapack, "dpotrf", &self.c.dpotrf)
        find(lapack, "dpotrs", &self.c.dpotrs)
        find(lapack, "dsytrd", &self.c.dsytrd)
        find(lapack, "dstemr", &self.c.dstemr)
        find(lapack, "dstedc", &self.c.dstedc)
        find(lapack, "dormtr", &self.c.dormtr)
        find(blas, "dgemv", &self.c.dgemv)


NEWTON_MAX = DPK_NEWTON_MAX


def newton_direction(const double[:, :, ::1] H, const double[:, ::1] g, double floor,
                     Lapack lapack, double[:, ::1] out, int n_threads):
    cdef intptr_t m = out.shape[0], d = out.shape[1]
    n_threads = max(1, min(n_threads, m))
    cdef double[::1] work = np.empty(n_threads * dpk_newton_work(d))
    cdef int[::1] iwork = np.empty(n_threads * dpk_newton_iwork(d), dtype=np.intc)
    check(dpk_check_rounding(n_threads))
    with nogil:
        check(kernels.newton_direction(
            m, d, at(&H[0, 0, 0]), at(&g[0, 0]), floor, &lapack.c, n_threads, first(work),
            &iwork[0], at(&out[0, 0])), "H")
