def loss_prox(data, const double[:, ::1] V, double gamma, Loss loss, double bound,
              double[:, ::1] out, double[::1] t, int n_threads):
    cdef Records records = Records(data)
    records.require_unweighted()
    cdef Models start = models_of(np.zeros((1, V.shape[1])))
    cdef dpk_sweep sweep
    records.join_silos()
    cdef Work work = work_of(records.offsets, records.task_rows(), 0, n_threads)
    sweep.prox_step, sweep.prox_bound = gamma, bound
    sweep.start = <double *> start.c
    sweep.common = <double *> at(&V[0, 0])
    with nogil:
        check(kernels.loss_prox(&records.c, &loss.c, &sweep, &work.c, at(&out[0, 0]), first(t)))


cdef class Sweeps:
    """Repeated sweeps of one state, whose common data are prepared once; see admm.h.

    common: (d,) or (N, d); scale: (N,) or None. Keeps references to all arrays it points into."""
    cdef dpk_sweep c
    cdef Records records
    cdef Loss loss
    cdef Work work, plain
    cdef object data, bounds
    cdef intptr_t d
    cdef double[::1] points, common, scale, space

    def __init__(self, data, common, scale, Loss loss, double prox_step, double prox_bound):
        self.data, self.loss, self.d = data, loss, data.d
        cdef intptr_t width = dpk_padded(self.d)
        self.points = aligned(2 * width)
        self.c.start, self.c.to = first(self.points), &self.points[width]
        self.c.prox_step, self.c.prox_bound = prox_step, prox_bound
        self.c.shared = common.ndim == 1
        self.common, self.scale = common.reshape(-1), scale
        self.c.common, self.c.scale = first(self.common), first(self.scale)

    def lay_out(self, rows, double relaxation, double bound, double grid, int n_threads,
                bounds=None):
        """Prepare the next sweeps; rows: (k,) or None; bounds: of the rows of every round, or None:
        all in one; grid: 0 for floating-point sums."""
        cdef Records records = Records(
            self.data,
            None if rows is None else (rows, np.array([0, len(rows)], dtype=np.int64)))
        records.require_unweighted()
        cdef const double[::1] grids = None if grid == 0.0 else np.array([grid])
        cdef const int64_t[::1] largest
        records.join_silos()
        largest = records.offsets if bounds is None else np.array([0, np.diff(bounds).max()])
        cdef intptr_t task_rows = records.task_rows(own_vectors=not self.c.shared)
        cdef bint hidden = self.c.scale != NULL
        self.work = work_of(largest, task_rows, self.d, n_threads, bound, grids if hidden else None)
        if hidden and not self.c.shared:
            self.plain = work_of(largest, task_rows, self.d, n_threads)
        else:
            self.plain = self.work
        self.space = None if hidden else aligned(
            self.work.c.n_threads * dpk_thread_stride(dpk_sweep_rows(self.d) * self.d))
        self.records, self.bounds = records, bounds
        self.c.relaxation, self.c.bound, self.c.grid = relaxation, bound, grid

    cdef int begin(self) except -1:
        """Check the modes of the processor, which may have changed since the last sweep."""
        check(dpk_check_rounding(self.work.c.n_threads))
        if dpk_flushes_denormals():  # stored norms are not valid there
            self.records.c.norm = NULL
        return 0

    def sweep(self, const double[::1] z, key, uint32_t purpose, double sigma):
        """Run a sweep; key: of a release, or None. Returns the sum, and the shift if per user."""
        cdef double[::1] total = np.empty(self.d), shift = np.empty(self.d)
        cdef Key secret = None if key is None else Key(key)
        first(z)
        self.c.key = NULL if secret is None else secret.words
        self.c.purpose, self.c.sigma = purpose, sigma
        self.begin()
        with nogil:
            check(kernels.prox_sweep(
                &self.records.c, &self.loss.c, &self.c, &self.work.c, &self.plain.c,
                first(self.space), first(z), first(total), first(shift)), "z")
        if self.c.shared or self.c.scale == NULL:
            return total.base
        return total.base, shift.base

    def rounds(self, const double[::1] zhat, double n, double shrink, intptr_t penalized, proxes,
               keys, uint32_t purpose, double sigma, double[:, ::1] out):
        """Run as many rounds as out has rows; proxes: two of (number in the table or -1, gamma,
        params); keys: of the rounds' releases, or None."""
        cdef dpk_admm run
        cdef const int64_t[::1] bounds = self.bounds
        cdef const double[::1] params
        cdef double[::1] space = np.empty(4 * self.d)
        cdef Keys secret = None
        cdef int i, number
        cdef double gamma
        if keys is not None:
            secret = Keys(out.shape[0])
            secret.add(0, keys)
        run.rounds, run.bounds, run.n = out.shape[0], first(bounds), n
        run.shrink, run.penalized = shrink, penalized
        for i, (number, gamma, params) in enumerate(proxes):
            run.prox[i].apply = NULL if number < 0 else kernels.proxes[number].apply
            run.prox[i].gamma, run.prox[i].params = gamma, first(params)
        run.key = NULL if secret is None else secret.words
        run.purpose, run.sigma, run.work = purpose, sigma, first(space)
        self.c.key = NULL
        self.begin()
        with nogil:
            check(kernels.admm_rounds(
                &self.records.c, &self.loss.c, &run, &self.c, &self.work.c, &self.plain.c,
                first(self.space), first(zhat), at(&out[0, 0])), "zhat")


def prox_rows(int prox, bint separable, const double[::1] params, const double[:, ::1] v,
              double gamma, double[:, ::1] out, int n_threads):
    """Apply the prox with index `prox` in its table to rows."""
    cdef intptr_t m = v.shape[0], d = v.shape[1]
    cdef double[::1] scratch = None if separable else np.empty(n_threads * dpk_thread_stride(d))
    if m * d <= 1024:
        n_threads = 1  # a team costs more than it saves
    check(dpk_check_rounding(n_threads))
    with nogil:
        check(kernels.prox_rows(
            m, d, at(&v[0, 0]), kernels.proxes[prox].apply, separable, gamma, first(params),
            first(scratch), n_threads, at(&out[0, 0])), "v")
