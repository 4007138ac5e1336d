def loss_prox(data, const double[:, ::1] V, double gamma, Loss loss, double bound,
              double[:, ::1] out, double[::1] t, int n_threads):
    cdef Records records = Records(data)
    cdef Models start = Models(np.zeros((1, V.shape[1])))
    cdef dpk_sweep sweep
    records.join_silos()
    cdef Work work = Work(records.offsets, records.task_rows(), 0, n_threads)
    sweep.prox_step, sweep.prox_bound = gamma, bound
    sweep.start = start.c
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
    cdef object data
    cdef bint is_shared
    cdef intptr_t d, width
    cdef double[::1] points, common, scale, space

    def __init__(self, data, common, scale, Loss loss, double prox_step, double prox_bound):
        self.data, self.loss = data, loss
        self.is_shared, self.d = common.ndim == 1, data.d
        self.width = dpk_padded(self.d)
        self.points = aligned(2 * self.width)
        self.c.start, self.c.to = first(self.points), &self.points[self.width]
        self.c.prox_step, self.c.prox_bound = prox_step, prox_bound
        self.common, self.scale = common.reshape(-1), scale
        self.c.common, self.c.scale = first(self.common), first(self.scale)

    def lay_out(self, rows, double relaxation, double bound, double grid, int n_threads):
        """Prepare the next sweeps; rows: (k,) or None; grid: 0 for floating-point sums."""
        cdef Records records = Records(
            self.data,
            None if rows is None else (rows, np.array([0, len(rows)], dtype=np.int64)))
        cdef const double[::1] grids = None if grid == 0.0 else np.array([grid])
        records.join_silos()
        cdef intptr_t task_rows = records.task_rows(own_vectors=not self.is_shared)
        cdef bint hidden = self.c.scale != NULL
        self.work = Work(records.offsets, task_rows, self.d, n_threads, bound,
                         grids if hidden else None)
        if hidden and not self.is_shared:
            self.plain = Work(records.offsets, task_rows, self.d, n_threads)
        elif not hidden:
            self.space = aligned(
                self.work.c.n_threads * dpk_thread_stride(dpk_sweep_rows(self.d) * self.d))
        self.records = records
        self.c.relaxation, self.c.bound, self.c.grid = relaxation, bound, grid

    def sweep(self, const double[::1] z, key, uint32_t purpose, double sigma):
        """Run a sweep; key: of a release, or None. Returns the sum, and the shift if per user."""
        cdef intptr_t k, d = self.d
        cdef double lam = self.c.relaxation, keep = 1.0 - 2.0 * self.c.relaxation
        cdef bint finite = True
        cdef double[::1] total = np.empty(d), shift = np.empty(d)
        cdef Key secret = None if key is None else Key(key)
        first(z)
        for k in range(d):
            finite = finite and fabs(z[k]) <= DBL_MAX
            self.points[k] = 2.0 * z[k]
            self.points[self.width + k] = (2.0 * lam) * z[k]
        if not finite:
            raise ValueError("z must be finite")
        if self.is_shared:
            for k in range(d):
                self.points[k] -= self.common[k]
        self.c.key = NULL if secret is None else secret.words
        self.c.purpose, self.c.sigma = purpose, sigma
        check(dpk_check_rounding(self.work.c.n_threads))
        if dpk_flushes_denormals():  # the mode may have changed since the norms were taken
            self.records.c.norm = NULL
        with nogil:
            if self.is_shared:
                check(kernels.sweep_shared(
                    &self.records.c, &self.loss.c, &self.c, &self.work.c, first(total)))
                for k in range(d):
                    self.common[k] = keep * self.common[k] + self.points[self.width + k]
            elif self.c.scale != NULL:
                check(kernels.sweep_per_user(
                    &self.records.c, &self.loss.c, &self.c, &self.work.c, &self.plain.c,
                    first(total), first(shift)))
            else:
                check(kernels.sweep_public(
                    &self.records.c, &self.loss.c, &self.c, &self.work.c, first(self.space),
                    first(total)))
        if self.is_shared or self.c.scale == NULL:
            return total.base
        return total.base, shift.base


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
