# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The only door to C: allocate, release the GIL, call, check. Callers have validated."""

import numpy as np

from cpython.pycapsule cimport PyCapsule_GetContext, PyCapsule_GetName, PyCapsule_GetPointer
from libc.float cimport DBL_MAX
from libc.math cimport fabs
from libc.stdint cimport int32_t, int64_t, intptr_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy


cdef extern from "dpk.h":
    ctypedef enum dpk_status:
        DPK_OK
        DPK_ERR_ROUNDING_MODE
        DPK_ERR_NO_CONVERGENCE
        DPK_ERR_NOT_FINITE
    ctypedef void (*dpk_loss_fn)(
        intptr_t n, const double *y, const double *z, double *value, double *d1, double *d2,
        void *params) noexcept nogil
    ctypedef double (*dpk_slope_fn)(double y, double z, const void *params) noexcept nogil
    ctypedef void (*dpk_prox_fn)(
        intptr_t first, intptr_t n, const double *v, double gamma, const double *params,
        double *scratch, double *out) noexcept nogil
    ctypedef double (*dpk_smooth_fn)(double norm) noexcept nogil
    ctypedef void (*dpk_vmath_fn)(intptr_t n, const double *x, double *out) noexcept nogil
    ctypedef void (*dpk_parts_fn)(
        intptr_t n, const double *y, const double *z, double *plain, double *factor,
        const void *params) noexcept nogil
    ctypedef int64_t (*dpk_approach_fn)(
        intptr_t n, const double *y, const double *m, const double *A, const double *lim,
        double gamma, double *t, double *open) noexcept nogil
    ctypedef enum dpk_bend:
        DPK_BEND_ANY
    ctypedef struct dpk_loss:
        dpk_loss_fn block
        dpk_slope_fn slope
        dpk_parts_fn parts
        dpk_approach_fn approach
        void *params
        int checked
        dpk_bend bend
    ctypedef struct dpk_data:
        intptr_t m, p, d
        const void *X
        int x_is_float32
        const void *indptr
        int indptr_is_int32
        const int32_t *indices
        const double *y
        const double *norm
        const int64_t *rows
        const int64_t *offsets
        const double *scale
        const double *shift
        double row_bound
        int intercept
    intptr_t dpk_padded(intptr_t d) nogil
    intptr_t dpk_apart(intptr_t n) nogil
    ctypedef struct dpk_earlier:
        double clip
        const double *w
        const double *z
        double *z_new
    ctypedef struct dpk_sum:
        double clip
        const double *grid
        const double *silo_weight
        intptr_t task_rows
        const int64_t *first_task
        double *partial
        int n_threads


cdef extern from "dispatch.h":
    const intptr_t DPK_WIDE
    ctypedef struct dpk_descent:
        intptr_t steps
        const double *step_size
        intptr_t batch
        intptr_t penalized
        double l2
        double anchor
        dpk_smooth_fn smooth
        double smooth_strength
        dpk_prox_fn prox
        double prox_strength
        const double *prox_params
        const uint32_t *key
        uint32_t purpose
        const double *sigma
    intptr_t dpk_hessian_size(intptr_t d) nogil
    intptr_t dpk_hessian_scratch(intptr_t d) nogil
    ctypedef struct dpk_together:
        const uint64_t *top
        const uint64_t *rest
        const int64_t *guide
    ctypedef struct dpk_sweep:
        double prox_step, relaxation, prox_bound, bound, grid
        const double *start "from"
        const double *to
        double *common
        double *scale
        const uint32_t *key
        uint32_t purpose
        double sigma
    intptr_t dpk_sweep_rows(intptr_t d) nogil
    ctypedef struct dpk_search:
        intptr_t count
        const double *step
        const double *bound
        const double *grid
    ctypedef struct dpk_lapack:
        void *dpotrf
        void *dpotrs
        void *dsytrd
        void *dstemr
        void *dstedc
        void *dormtr
        void *dgemv
    intptr_t dpk_newton_work(intptr_t d) nogil
    intptr_t dpk_newton_iwork(intptr_t d) nogil
    int DPK_NEWTON_MAX
    ctypedef enum dpk_activation:
        DPK_RELU
    ctypedef struct dpk_layer:
        pass
    ctypedef struct dpk_mlp:
        intptr_t depth
        dpk_activation activation
        const dpk_loss *loss
        intptr_t n_params, n_weights, n_factors
        int points
        double gradient_clip
    const int DPK_MLP_BLOCK
    void dpk_mlp_layout(const intptr_t *sizes, dpk_layer *layers, dpk_mlp *net) nogil
    intptr_t dpk_mlp_scratch(const dpk_mlp *net) nogil
    intptr_t dpk_mlp_held(const dpk_mlp *net, int64_t blocks, int n_threads) nogil
    intptr_t dpk_mlp_room(intptr_t held) nogil
    intptr_t dpk_descent_noise(const dpk_descent *run, intptr_t d) nogil
    ctypedef struct dpk_kernels:
        const char *name
        const char *const *loss_names
        dpk_loss_fn *losses
        dpk_slope_fn *slopes
        dpk_parts_fn *parts
        dpk_approach_fn *approaches
        const dpk_bend *bends
        const char *const *prox_names
        dpk_prox_fn *proxes
        const char *const *smooth_names
        dpk_smooth_fn *smooths
        const char *const *vmath_names
        dpk_vmath_fn *vmath
        dpk_status (*clip_and_sum)(
            const dpk_data *data, const dpk_sum *sum, double *out) noexcept nogil
        dpk_status (*glm_norms)(
            const dpk_data *data, const dpk_sum *sum, double *norm) noexcept nogil
        dpk_status (*glm_margins)(
            const dpk_data *data, const double *w, intptr_t w_stride, const dpk_sum *sum,
            double *z) noexcept nogil
        dpk_status (*glm_losses)(
            const dpk_data *data, const double *w, intptr_t w_stride, const dpk_loss *loss,
            const dpk_sum *sum, double *out) noexcept nogil
        dpk_status (*glm_gradient)(
            const dpk_data *data, const double *w, intptr_t w_stride, const dpk_loss *loss,
            const dpk_sum *sum, double *out) noexcept nogil
        dpk_status (*glm_difference)(
            const dpk_data *data, const double *w_new, intptr_t new_stride, const double *w_old,
            intptr_t old_stride, const dpk_loss *loss, const dpk_earlier *earlier,
            const dpk_sum *sum, double *out) noexcept nogil
        dpk_status (*glm_hessian)(
            const dpk_data *data, const double *w, intptr_t w_stride, const dpk_loss *loss,
            double row_grid, const dpk_sum *sum, double *scratch, double *out) noexcept nogil
        dpk_status (*loss_prox)(
            const dpk_data *data, const dpk_loss *loss, const dpk_sweep *sweep, const dpk_sum *sum,
            double *X, double *t) noexcept nogil
        dpk_status (*sweep_together)(
            const dpk_data *data, const dpk_loss *loss, const dpk_sweep *sweep, const dpk_sum *sum,
            double *S) noexcept nogil
        dpk_status (*sweep_per_user)(
            const dpk_data *data, const dpk_loss *loss, const dpk_sweep *sweep, const dpk_sum *sum,
            const dpk_sum *plain, double *S, double *P) noexcept nogil
        dpk_status (*sweep_public)(
            const dpk_data *data, const dpk_loss *loss, const dpk_sweep *sweep, const dpk_sum *sum,
            double *space, double *M) noexcept nogil
        dpk_status (*local_descent)(
            const dpk_data *data, const double *w, intptr_t w_stride, const dpk_loss *loss,
            const dpk_descent *run, const dpk_sum *sum, const int64_t *order, intptr_t count,
            double *noise, double *out) noexcept nogil
        void (*chacha20_block)(
            const uint32_t *key, uint64_t counter, uint64_t nonce, uint32_t *out) noexcept nogil
        void (*chacha20_chunks)(
            const uint32_t *key, uint64_t nonce, uint64_t chunk, size_t n_chunks, uint64_t *out
        ) noexcept nogil
        dpk_status (*gaussian)(
            const uint32_t *key, uint32_t purpose, intptr_t m, intptr_t n, const double *sigma,
            const double *grid, dpk_path path, int n_threads, double *out) noexcept nogil
        dpk_status (*gaussian_words)(
            const uint32_t *key, uint64_t nonce, const uint64_t *words, const uint64_t *extra,
            intptr_t n, double ratio, dpk_path path, double *out, uint8_t *decided_by
        ) noexcept nogil
        dpk_status (*goe)(
            intptr_t m, intptr_t d, const double *diagonal, const double *above, int n_threads,
            double *out) noexcept nogil
        dpk_status (*line_search)(
            const dpk_data *data, const double *w, intptr_t w_stride, const double *direction,
            intptr_t direction_stride, const dpk_loss *loss, const dpk_search *search,
            const dpk_sum *sum, double *out) noexcept nogil
        dpk_status (*mlp_gradient)(
            const dpk_data *data, const dpk_mlp *net, const double *params, intptr_t models,
            double unit, const dpk_sum *sum, double *weights, double *scratch, double *factors,
            double *out) noexcept nogil
        dpk_status (*newton_direction)(
            intptr_t m, intptr_t d, const double *H, const double *g, double floor,
            const dpk_lapack *lapack, int n_threads, double *work, int *iwork, double *out
        ) noexcept nogil
        dpk_status (*prox_rows)(
            intptr_t m, intptr_t d, const double *v, dpk_prox_fn prox, int separable, double gamma,
            const double *params, double *scratch, int n_threads, double *out) noexcept nogil
        dpk_status (*shuffle_sum)(
            const uint32_t *key, uint32_t rounding, uint32_t noise, intptr_t n, intptr_t d,
            const double *V, double bound, int64_t g, int64_t b, const dpk_together *many,
            const dpk_together *few, int n_threads, double *partial, int64_t *count) noexcept nogil
    ctypedef enum dpk_path:
        DPK_PATH_FAST
    const int DPK_CHUNK_WORDS
    void dpk_wipe(void *memory, size_t size) nogil
    const dpk_kernels *dpk_isa(int i)
    int dpk_isa_runs(int i)
    dpk_status dpk_check_rounding(int n_threads) nogil
    int dpk_flushes_denormals() nogil


cdef extern from *:
    """
    #ifdef _OPENMP
    enum { HAVE_OPENMP = 1 };
    #else
    enum { HAVE_OPENMP = 0 };
    #endif
    """
    int HAVE_OPENMP


cdef const dpk_kernels *kernels = NULL

openmp = bool(HAVE_OPENMP)


def flushes_denormals():
    """Whether the calling thread takes denormals for zeros, or returns zeros for them."""
    return bool(dpk_flushes_denormals())


def isa_names():
    """Instruction sets that this build holds and this processor runs, best first."""
    names, i = [], 0
    while dpk_isa(i) != NULL:
        if dpk_isa_runs(i):
            names.append(dpk_isa(i).name.decode())
        i += 1
    return names


def isa():
    """The instruction set in use."""
    return kernels.name.decode()


def _use_isa(name):
    """Use the kernels of instruction set `name` from now on; None chooses the best."""
    global kernels
    i = 0
    while dpk_isa(i) != NULL:
        if dpk_isa_runs(i) and (name is None or dpk_isa(i).name.decode() == name):
            kernels = dpk_isa(i)
            return
        i += 1
    raise ValueError(f"DPKERN_ISA={name!r} is not one of {isa_names()}, which this machine runs")


cdef list names_of(const char *const *names):
    found, i = [], 0
    while names[i] != NULL:
        found.append(names[i].decode())
        i += 1
    return found


def loss_names():
    """Losses compiled in, in the order of their numbers."""
    return names_of(kernels.loss_names)


def prox_names():
    """Proximal operators compiled in, in the order of their numbers."""
    return names_of(kernels.prox_names)


def smooth_names():
    """Smooth regularisers compiled in, in the order of their numbers."""
    return names_of(kernels.smooth_names)


def vmath_names():
    """Elementary functions compiled in, in the order of their numbers."""
    return names_of(kernels.vmath_names)


cdef int check(dpk_status status, str argument="") except -1:
    if status == DPK_ERR_ROUNDING_MODE:
        raise RuntimeError(
            "the processor's rounding mode is not 'to nearest', which exact sums rely on")
    if status == DPK_ERR_NO_CONVERGENCE:
        raise RuntimeError("LAPACK's eigenvalue iteration did not converge")
    if status == DPK_ERR_NOT_FINITE:
        raise ValueError(f"{argument} must be finite")
    if status != DPK_OK:
        raise RuntimeError(f"kernel failed with status {<int> status}")
    return 0


cdef class Records:
    """A SiloData, or a minibatch of it, as C sees it. Holds every array that it points into."""
    cdef dpk_data c
    cdef object keep
    cdef const int64_t[::1] offsets
    cdef intptr_t n_entries

    def __init__(self, data, rows=None):
        # Every attribute is read once: a second reading could be another array.
        X, labels, factor, offset = data.X, data.y, data.scale, data.shift
        # Kept norms bound the rows of a thread that counts denormals.
        norms = None if dpk_flushes_denormals() else data.row_norms
        cdef const double[::1] y = labels
        cdef const double[::1] vector
        cdef const int64_t[::1] index
        cdef const int32_t[::1] column
        self.c.indptr = NULL
        self.c.indices = NULL
        if hasattr(X, "indptr"):
            values, columns, bounds = X.data, X.indices, X.indptr
            self.c.indptr_is_int32 = bounds.dtype == np.int32
            if self.c.indptr_is_int32:
                column = bounds
                self.c.indptr = &column[0]
            else:
                index = bounds
                self.c.indptr = &index[0]
            column = columns
            if column.shape[0] > 0:
                self.c.indices = &column[0]
            self.n_entries = column.shape[0]
        else:
            values, columns, bounds = X.reshape(-1), None, None
            self.n_entries = values.size
        self.c.X = address_of(values)
        self.c.x_is_float32 = values.dtype == np.float32
        self.c.y = &y[0]
        self.c.norm = self.c.scale = self.c.shift = NULL
        self.c.rows = NULL
        self.offsets = data.offsets
        if rows is not None:
            index, self.offsets = rows
            if index.shape[0] > 0:
                self.c.rows = &index[0]
        self.c.offsets = &self.offsets[0]
        if norms is not None:
            vector = norms
            self.c.norm = &vector[0]
        if factor is not None:
            vector = factor
            self.c.scale = &vector[0]
        if offset is not None:
            vector = offset
            self.c.shift = &vector[0]
        self.c.m = self.offsets.shape[0] - 1
        self.c.p = X.shape[1]
        self.c.d = data.d
        if data.d != X.shape[1] + bool(data.intercept):
            raise ValueError("data was changed: its columns and d no longer agree")
        self.c.row_bound = data.row_bound
        self.c.intercept = data.intercept
        self.keep = (values, columns, bounds, labels, rows, norms, factor, offset)

    cdef void join_silos(self):
        """All records as one silo."""
        cdef int64_t n = self.offsets[self.offsets.shape[0] - 1]
        self.offsets = np.array([0, n], dtype=np.int64)
        self.c.offsets, self.c.m = &self.offsets[0], 1

    cdef intptr_t task_rows(self, bint own_vectors=False):
        """Records of one unit of work: enough that adding up partial sums costs little, and few
        enough for a wide problem to have several.

        own_vectors: every record has a vector (d,) that is read beside it. Its sums over records
        are in floating point and public, so their order is no function of how many entries are
        stored, but of the numbers of records and coordinates alone."""
        cdef intptr_t size = len(self.keep[3]) * self.c.d if own_vectors else self.n_entries
        cdef intptr_t rows = max(64, min(max(size // 64, 1 << 16), 1 << 19) // self.c.d)
        if self.c.indptr != NULL and self.n_entries > 0 and not own_vectors:
            # A partial sum is dense: it must stay small against the entries that go into it.
            per_row = self.n_entries / <double> len(self.keep[3])
            rows = max(512, <intptr_t> (8.0 * self.c.d / per_row))
        return rows


cdef const void *address_of(values) except? NULL:
    cdef const double[::1] x64
    cdef const float[::1] x32
    if values.shape[0] == 0:
        return NULL
    if values.dtype == np.float32:
        x32 = values
        return &x32[0]
    x64 = values
    return &x64[0]


cdef double[::1] aligned(intptr_t n, make=np.empty):
    """Space for n doubles from the start of a cache line on: reads and writes across two lines cost
    twice."""
    cdef double[::1] space = make(n + 8)
    cdef intptr_t skip = (8 - (<intptr_t> &space[0]) // 8 % 8) % 8
    return space[skip:skip + n]


cdef class Models:
    """Models of the silos, one row each or one for all, where kernels read them best."""
    cdef const double[::1] values
    cdef const double *c
    cdef intptr_t stride

    def __init__(self, const double[:, ::1] w):
        cdef intptr_t j, rows = w.shape[0], d = w.shape[1]
        cdef intptr_t width = dpk_padded(d)
        cdef double[::1] values = aligned(max(1, rows * width))
        for j in range(rows):
            memcpy(&values[j * width], &w[j, 0], d * sizeof(double))
        self.values = values
        self.c = &values[0]
        self.stride = 0 if rows == 1 else width


cdef class Work:
    """Work space of one call: units of work per silo, partial sums. shares: among how many threads
    one unit is divided."""
    cdef dpk_sum c
    cdef object keep

    def __init__(self, const int64_t[::1] offsets, intptr_t task_rows, intptr_t width,
                 int n_threads, double clip=float("inf"), const double[::1] grid=None,
                 const double[::1] silo_weight=None, int64_t shares=1):
        cdef intptr_t j, m = offsets.shape[0] - 1
        cdef int64_t[::1] first_task = np.empty(m + 1, dtype=np.int64)
        first_task[0] = 0
        for j in range(m):
            first_task[j + 1] = first_task[j] + (
                offsets[j + 1] - offsets[j] + task_rows - 1) // task_rows
        cdef int64_t n_tasks = first_task[m]
        n_threads = max(1, min(n_threads, n_tasks * shares))
        check(dpk_check_rounding(n_threads))
        cdef double[::1] partial = aligned(max(1, n_tasks * dpk_apart(width) if width else 0))
        self.keep = (first_task, partial, grid, silo_weight)
        self.c.clip = clip
        self.c.grid = NULL if grid is None else &grid[0]
        self.c.silo_weight = NULL if silo_weight is None else &silo_weight[0]
        self.c.task_rows = task_rows
        self.c.first_task = &first_task[0]
        self.c.partial = &partial[0]
        self.c.n_threads = n_threads


cdef class Loss:
    """A loss of the table by its number, or a user's function, with its parameters."""
    cdef dpk_loss c
    cdef object keep

    def __init__(self, int number, double[::1] params):
        self.keep = params
        self.c.block = kernels.losses[number]
        self.c.slope = kernels.slopes[number]
        self.c.parts = kernels.parts[number]
        self.c.approach = kernels.approaches[number]
        self.c.bend = kernels.bends[number]
        self.c.params = &params[0]
        self.c.checked = 0

    @staticmethod
    def custom(callable):
        """That of a scipy.LowLevelCallable: its capsule holds function and user data."""
        cdef Loss loss = Loss.__new__(Loss)
        capsule = tuple(callable)[0]
        cdef void *function = PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule))
        loss.keep = callable
        memcpy(&loss.c.block, &function, sizeof(function))
        loss.c.slope = NULL
        loss.c.parts = NULL
        loss.c.approach = NULL
        loss.c.bend = DPK_BEND_ANY
        loss.c.params = PyCapsule_GetContext(capsule)
        loss.c.checked = 1
        return loss


def clip_and_sum(G, const int64_t[::1] offsets, double clip, const double[::1] grid,
                 double[:, ::1] out, int n_threads):
    cdef dpk_data data
    cdef intptr_t d = out.shape[1], task_rows = max(64, (1 << 16) // d), shares = 1
    if grid is not None and d > DPK_WIDE:
        task_rows, shares = G.shape[0], n_threads
    elif grid is not None:
        # Exact in any order, so the number of threads may enter: few partial sums, if long ones.
        task_rows = max(task_rows, G.shape[0] // (1 if n_threads == 1 else 4 * n_threads))
    cdef Work work = Work(offsets, task_rows, d, n_threads, clip, grid, shares=shares)
    cdef dpk_status status
    data.X = address_of(G.reshape(-1))
    data.x_is_float32 = G.dtype == np.float32
    data.m, data.p, data.d = offsets.shape[0] - 1, d, d
    data.offsets = &offsets[0]
    data.rows = NULL
    data.indptr = NULL
    data.scale = data.shift = data.norm = NULL
    data.intercept = 0
    with nogil:
        status = kernels.clip_and_sum(&data, &work.c, &out[0, 0])
    check(status)


def glm_norms(data, double[::1] out, int n_threads):
    cdef Records records = Records(data)
    cdef Work work = Work(records.offsets, records.task_rows(), 0, n_threads)
    cdef dpk_status status
    with nogil:
        status = kernels.glm_norms(&records.c, &work.c, &out[0])
    check(status)


def glm_margins(data, const double[:, ::1] w, double[::1] out, int n_threads):
    cdef Models models = Models(w)
    cdef Records records = Records(data)
    cdef Work work = Work(records.offsets, records.task_rows(), 0, n_threads)
    cdef dpk_status status
    with nogil:
        status = kernels.glm_margins(&records.c, models.c, models.stride, &work.c, &out[0])
    check(status)


def glm_losses(data, const double[:, ::1] w, Loss loss, double[::1] out, int n_threads):
    cdef Models models = Models(w)
    cdef Records records = Records(data)
    cdef Work work = Work(records.offsets, records.task_rows(), 1, n_threads)
    cdef dpk_status status
    with nogil:
        status = kernels.glm_losses(&records.c, models.c, models.stride, &loss.c, &work.c,
                                    &out[0])
    check(status)


def glm_gradient(data, const double[:, ::1] w, Loss loss, double clip,
                 const double[::1] grid, const double[::1] silo_weight, rows,
                 double[:, ::1] out, int n_threads):
    cdef Models models = Models(w)
    cdef Records records = Records(data, rows)
    cdef Work work = Work(records.offsets, records.task_rows(), out.shape[1], n_threads, clip,
                          grid, silo_weight)
    cdef dpk_status status
    with nogil:
        status = kernels.glm_gradient(&records.c, models.c, models.stride, &loss.c, &work.c,
                                      &out[0, 0])
    check(status)


def glm_difference(data, const double[:, ::1] w_new, const double[:, ::1] w_old, Loss loss,
                   double clip, double gradient_clip, const double[::1] grid,
                   const double[::1] silo_weight, rows, const double[::1] margins,
                   double[::1] new_margins, double[:, ::1] out, int n_threads):
    """margins, at w_old, and new_margins: (n,) or None."""
    cdef Models models = Models(w_new), earlier_models = Models(w_old)
    cdef Records records = Records(data, rows)
    cdef Work work = Work(records.offsets, records.task_rows(), out.shape[1], n_threads, clip,
                          grid, silo_weight)
    cdef dpk_earlier earlier
    cdef dpk_status status
    earlier.clip, earlier.w = gradient_clip, NULL
    earlier.z = NULL if margins is None else &margins[0]
    earlier.z_new = NULL if new_margins is None else &new_margins[0]
    with nogil:
        status = kernels.glm_difference(&records.c, models.c, models.stride, earlier_models.c,
                                        earlier_models.stride, &loss.c, &earlier, &work.c,
                                        &out[0, 0])
    check(status)


def glm_hessian(data, const double[:, ::1] w, Loss loss, double hess_clip, double row_grid,
                const double[::1] grid, const double[::1] silo_weight, intptr_t records,
                double[:, :, ::1] out, int n_threads):
    """row_grid: 0 for floating-point sums; records: of how many a sum is exact in doubles."""
    cdef Models models = Models(w)
    cdef Records rows = Records(data)
    cdef intptr_t n = rows.offsets[rows.c.m], size = dpk_hessian_size(out.shape[1])
    # At most 64 units of work besides one a silo, and fewer where their matrices are large; more
    # where a unit's sum would not be exact.
    cdef intptr_t units = max(4, min(64, (1 << 23) // size))
    cdef Work work = Work(rows.offsets, min(records, max(1024, (n + units - 1) // units)), size,
                          n_threads, hess_clip, grid, silo_weight)
    cdef double[::1] scratch = aligned(
        work.c.n_threads * dpk_apart(dpk_hessian_scratch(out.shape[1])))
    cdef dpk_status status
    with nogil:
        status = kernels.glm_hessian(&rows.c, models.c, models.stride, &loss.c, row_grid,
                                     &work.c, &scratch[0], &out[0, 0, 0])
    check(status)


def local_descent(data, const double[:, ::1] w, Loss loss, double clip, const double[::1] grid,
                  const double[::1] step_size, intptr_t penalized, double l2,
                  double anchor, int smooth, double smooth_strength, int prox, double prox_strength,
                  const double[::1] prox_params, key, uint32_t purpose, const double[::1] sigma,
                  rows, intptr_t batch, const int64_t[::1] silos, double[:, ::1] out,
                  int n_threads):
    """smooth, prox: numbers in their tables, or -1; key: of a release, or None; rows: `batch`
    records for every step, or None and 0; silos: those that run, at least one."""
    cdef Models models = Models(w)
    cdef Records records = Records(data, rows)
    cdef intptr_t d = out.shape[1]
    sizes = np.diff(np.asarray(records.offsets))[np.asarray(silos)]
    cdef const int64_t[::1] order = np.asarray(silos)[np.argsort(-sizes, kind="stable")]
    cdef double[::1] norms
    cdef Key k = None if key is None else Key(key)
    cdef dpk_descent run
    cdef dpk_status status
    if records.c.norm == NULL and rows is None:
        # Every step needs them, and X does not change within a call.
        norms = np.empty(records.offsets[records.c.m])
        glm_norms(data, norms, n_threads)
        records.c.norm = &norms[0]
    # A silo is one unit of work.
    cdef Work work = Work(records.offsets, max(1, records.offsets[records.c.m]), 2 * dpk_padded(d),
                          n_threads, clip, grid)
    run.steps, run.step_size, run.batch = step_size.shape[0], &step_size[0], batch
    run.penalized, run.l2, run.anchor = penalized, l2, anchor
    run.smooth = NULL if smooth < 0 else kernels.smooths[smooth]
    run.smooth_strength = smooth_strength
    run.prox = NULL if prox < 0 else kernels.proxes[prox]
    run.prox_strength, run.prox_params = prox_strength, &prox_params[0]
    run.key = NULL if k is None else k.words
    run.purpose = purpose
    run.sigma = NULL if sigma is None else &sigma[0]
    cdef double[::1] noise = np.empty(max(1, work.c.n_threads * dpk_descent_noise(&run, d)))
    with nogil:
        status = kernels.local_descent(&records.c, models.c, models.stride, &loss.c, &run,
                                       &work.c, &order[0], order.shape[0], &noise[0], &out[0, 0])
    check(status)


def loss_prox(data, const double[:, ::1] V, double gamma, Loss loss, double bound,
              double[:, ::1] out, double[::1] t, int n_threads):
    cdef Records records = Records(data)
    cdef Models start = Models(np.zeros((1, V.shape[1])))
    cdef dpk_sweep sweep
    cdef dpk_status status
    records.join_silos()
    cdef Work work = Work(records.offsets, records.task_rows(), 0, n_threads)
    sweep.prox_step, sweep.prox_bound = gamma, bound
    sweep.start = start.c
    sweep.common = <double *> &V[0, 0]
    with nogil:
        status = kernels.loss_prox(&records.c, &loss.c, &sweep, &work.c, &out[0, 0], &t[0])
    check(status)


cdef class Sweeps:
    """Sweeps of one state, time and again: what they share is laid out once. See admm.h.

    common: (d,) or (N, d); scale: (N,) or None. Holds every array that it points into."""
    cdef dpk_sweep c
    cdef Records records
    cdef Loss loss
    cdef Work work, plain
    cdef object data
    cdef bint together
    cdef intptr_t d, width
    cdef double[::1] points, shared, scales, space
    cdef double[:, ::1] own

    def __init__(self, data, common, scale, Loss loss, double prox_step, double prox_bound):
        self.data, self.loss = data, loss
        self.together, self.d = common.ndim == 1, data.d
        self.width = dpk_padded(self.d)
        self.points = aligned(2 * self.width)
        self.c.start, self.c.to = &self.points[0], &self.points[self.width]
        self.c.prox_step, self.c.prox_bound = prox_step, prox_bound
        self.c.common = self.c.scale = NULL
        if self.together:
            self.shared = common
        else:
            self.own = common
            self.c.common = &self.own[0, 0]
        if scale is not None:
            self.scales = scale
            self.c.scale = &self.scales[0]

    def lay_out(self, rows, double relaxation, double bound, double grid, int n_threads):
        """For the sweeps to come; rows: (k,) or None; grid: 0 for floating-point sums."""
        cdef Records records = Records(
            self.data,
            None if rows is None else (rows, np.array([0, len(rows)], dtype=np.int64)))
        cdef const double[::1] grids = None if grid == 0.0 else np.array([grid])
        records.join_silos()
        cdef intptr_t task_rows = records.task_rows(own_vectors=not self.together)
        cdef bint hidden = self.c.scale != NULL
        self.work = Work(records.offsets, task_rows, self.d, n_threads, bound,
                         grids if hidden else None)
        if hidden and not self.together:
            self.plain = Work(records.offsets, task_rows, self.d, n_threads)
        elif not hidden:
            self.space = aligned(self.work.c.n_threads * dpk_apart(dpk_sweep_rows(self.d) * self.d))
        self.records = records
        self.c.relaxation, self.c.bound, self.c.grid = relaxation, bound, grid

    def sweep(self, const double[::1] z, key, uint32_t purpose, double sigma):
        """key: of a release, or None. Returns the sum, of a state per user that and the shift."""
        cdef intptr_t k, d = self.d
        cdef double lam = self.c.relaxation, keep = 1.0 - 2.0 * self.c.relaxation
        cdef bint finite = True
        cdef double[::1] total, shift
        cdef Key secret = None if key is None else Key(key)
        cdef dpk_status status
        for k in range(d):
            finite = finite and fabs(z[k]) <= DBL_MAX
            self.points[k] = 2.0 * z[k]
            self.points[self.width + k] = (2.0 * lam) * z[k]
        if not finite:
            raise ValueError("z must be finite")
        if self.together:
            for k in range(d):
                self.points[k] -= self.shared[k]
        self.c.key = NULL if secret is None else secret.words
        self.c.purpose, self.c.sigma = purpose, sigma
        check(dpk_check_rounding(self.work.c.n_threads))
        if dpk_flushes_denormals():  # the mode may have changed since the norms were taken
            self.records.c.norm = NULL
        sums = np.empty(d)
        total = sums
        if self.together:
            with nogil:
                status = kernels.sweep_together(&self.records.c, &self.loss.c, &self.c,
                                                &self.work.c, &total[0])
            check(status)
            for k in range(d):
                self.shared[k] = keep * self.shared[k] + self.points[self.width + k]
            return sums
        if self.c.scale != NULL:
            moved = np.empty(d)
            shift = moved
            with nogil:
                status = kernels.sweep_per_user(&self.records.c, &self.loss.c, &self.c,
                                                &self.work.c, &self.plain.c, &total[0], &shift[0])
            check(status)
            return sums, moved
        with nogil:
            status = kernels.sweep_public(&self.records.c, &self.loss.c, &self.c, &self.work.c,
                                          &self.space[0], &total[0])
        check(status)
        return sums


def on_grid(const double[:, ::1] sums, const double[::1] grid):
    """Whether row j of the sums holds multiples of grid[j], a power of two, within 2^52 steps."""
    cdef intptr_t j, k
    cdef double inverse, steps
    for j in range(sums.shape[0]):
        inverse = 1.0 / grid[j]
        for k in range(sums.shape[1]):
            steps = sums[j, k] * inverse  # exact; what over- or underflows fails a comparison
            if not fabs(steps) <= 4503599627370496.0:
                return False
            if <double> (<int64_t> steps) * grid[j] != sums[j, k]:
                return False
    return True


def loss_block(Loss loss, const double[::1] y, const double[::1] z, double[::1] value,
               double[::1] d1, double[::1] d2):
    cdef intptr_t n = y.shape[0]
    loss.c.block(n, &y[0], &z[0], &value[0], &d1[0], &d2[0], loss.c.params)


def smooth_factor(int smooth, double norm):
    return kernels.smooths[smooth](norm)


def vmath(int number, const double[::1] x, double[::1] out):
    """For tests: out = f(x) for elementary function `number`."""
    kernels.vmath[number](x.shape[0], &x[0], &out[0])


def prox_rows(int prox, bint separable, const double[::1] params, const double[:, ::1] v,
              double gamma, double[:, ::1] out, int n_threads):
    """prox: number in its table."""
    cdef intptr_t m = v.shape[0], d = v.shape[1]
    cdef double[::1] scratch = None if separable else np.empty(n_threads * dpk_apart(d))
    cdef dpk_status status
    with nogil:
        status = kernels.prox_rows(m, d, &v[0, 0], kernels.proxes[prox], separable, gamma,
                                   &params[0], NULL if scratch is None else &scratch[0], n_threads,
                                   &out[0, 0])
    check(status, "v")


cdef class Key:
    """A 256-bit key as C reads it; overwritten when it goes."""
    cdef uint32_t[8] words

    def __init__(self, const uint8_t[::1] key):
        if key.shape[0] != 32:
            raise ValueError(f"a key has 32 bytes, got {key.shape[0]}")
        memcpy(self.words, &key[0], 32)

    def __dealloc__(self):
        dpk_wipe(self.words, 32)


def chacha20_block(const uint8_t[::1] key, uint64_t counter, uint64_t nonce,
                   uint8_t[::1] out):
    """Writes the 64 bytes of one block to `out`."""
    cdef Key k = Key(key)
    cdef uint32_t[16] block
    if out.shape[0] != 64:
        raise ValueError(f"out must hold 64 bytes, got {out.shape[0]}")
    kernels.chacha20_block(k.words, counter, nonce, block)
    memcpy(&out[0], block, 64)
    dpk_wipe(block, 64)


def chacha20_chunks(const uint8_t[::1] key, uint64_t nonce, uint64_t chunk, uint64_t[::1] out):
    """Fills `out`, whole chunks, with the stream from chunk number `chunk` on."""
    cdef Key k = Key(key)
    cdef size_t n_chunks = out.shape[0] // DPK_CHUNK_WORDS
    kernels.chacha20_chunks(k.words, nonce, chunk, n_chunks, &out[0])


def gaussian(const uint8_t[::1] key, uint32_t purpose, const double[::1] sigma,
             const double[::1] grid, double[:, ::1] out, int n_threads, int path=DPK_PATH_FAST):
    cdef Key k = Key(key)
    cdef intptr_t m = out.shape[0], n = out.shape[1]
    cdef dpk_status status
    check(dpk_check_rounding(n_threads))
    if m == 0 or n == 0:
        return
    with nogil:
        status = kernels.gaussian(k.words, purpose, m, n, &sigma[0], &grid[0], <dpk_path> path,
                                  n_threads, &out[0, 0])
    check(status)


def gaussian_words(const uint8_t[::1] key, uint64_t nonce, const uint64_t[::1] words,
                   const uint64_t[:, ::1] extra, double ratio, int path, double[::1] out,
                   uint8_t[::1] decided_by):
    """For tests: draws from given bits of U, and which step decided each; see gaussian.h."""
    cdef Key k = Key(key)
    cdef const uint64_t *rest = NULL if extra is None else &extra[0, 0]
    check(dpk_check_rounding(1))
    check(kernels.gaussian_words(k.words, nonce, &words[0], rest, words.shape[0], ratio,
                                 <dpk_path> path, &out[0], &decided_by[0]))


def goe(const double[:, ::1] diagonal, const double[:, ::1] above, double[:, :, ::1] out,
        int n_threads):
    cdef intptr_t m = out.shape[0], d = out.shape[1]
    cdef const double *upper = NULL
    cdef dpk_status status
    if m == 0 or d == 0:
        return
    if d > 1:
        upper = &above[0, 0]
    with nogil:
        status = kernels.goe(m, d, &diagonal[0, 0], upper, n_threads, &out[0, 0, 0])
    check(status)


cdef class Together:
    """The law of coins that are tossed together; see shuffle.h."""
    cdef dpk_together c
    cdef object keep

    def __init__(self, const uint64_t[::1] top, const uint64_t[::1] rest,
                 const int64_t[::1] guide):
        self.keep = (top, rest, guide)
        self.c.top, self.c.rest, self.c.guide = &top[0], &rest[0], &guide[0]


def shuffle_sum(const uint8_t[::1] key, uint32_t rounding, uint32_t noise, const double[:, ::1] V,
                double bound, int64_t g, int64_t b, many, few, int64_t[::1] count, int n_threads):
    """What the analyser counts; see shuffle.h. many, few: arguments of Together, or None."""
    cdef Key k = Key(key)
    cdef intptr_t n = V.shape[0], d = V.shape[1]
    cdef Together of_many = None if many is None else Together(*many)
    cdef Together of_few = None if few is None else Together(*few)
    cdef const dpk_together *at_many = NULL if many is None else &of_many.c
    cdef const dpk_together *at_few = NULL if few is None else &of_few.c
    cdef double[::1] partial = aligned(n_threads * dpk_apart(d))
    cdef dpk_status status
    check(dpk_check_rounding(n_threads))
    with nogil:
        status = kernels.shuffle_sum(k.words, rounding, noise, n, d, &V[0, 0], bound, g, b,
                                     at_many, at_few, n_threads, &partial[0], &count[0])
    check(status)


def line_search(data, const double[:, ::1] w, const double[:, ::1] p, Loss loss,
                const double[::1] step, const double[:, ::1] bound, const double[:, ::1] grid,
                double[:, ::1] out, int n_threads):
    """bound and grid: (m, len(step)), or None for sums of losses."""
    cdef Models models = Models(w), directions = Models(p)
    cdef Records records = Records(data)
    cdef Work work = Work(records.offsets, records.task_rows(), out.shape[1], n_threads)
    cdef dpk_search search
    cdef dpk_status status
    search.count, search.step = step.shape[0], &step[0]
    search.bound = NULL if bound is None else &bound[0, 0]
    search.grid = NULL if grid is None else &grid[0, 0]
    with nogil:
        status = kernels.line_search(&records.c, models.c, models.stride, directions.c,
                                     directions.stride, &loss.c, &search, &work.c, &out[0, 0])
    check(status)


def mlp_gradient(data, const double[:, :, ::1] params, const intptr_t[::1] sizes, int activation,
                 Loss loss, double clip, double gradient_clip, double unit,
                 const double[::1] grid, const double[::1] silo_weight, rows, double[:, ::1] out,
                 int n_threads):
    """params: (points, m or 1, P); loss: None is softmax; gradient_clip: of differences; unit: 0
    for floating-point sums."""
    cdef Records records = Records(data, rows)
    cdef Work work = Work(records.offsets, DPK_MLP_BLOCK, 0, n_threads, clip, grid, silo_weight)
    cdef dpk_mlp net
    cdef dpk_status status
    net.depth, net.points = sizes.shape[0] - 1, params.shape[0]
    net.activation, net.gradient_clip = <dpk_activation> activation, gradient_clip
    net.loss = NULL if loss is None else &loss.c
    cdef char[::1] layers = np.empty(net.depth * sizeof(dpk_layer), dtype=np.int8)
    dpk_mlp_layout(&sizes[0], <dpk_layer *> &layers[0], &net)
    cdef int threads = work.c.n_threads
    cdef intptr_t held = dpk_mlp_held(&net, work.c.first_task[records.c.m], threads)
    cdef double[::1] weights = aligned(params.shape[0] * params.shape[1] * net.n_weights)
    cdef double[::1] scratch = aligned(threads * dpk_apart(dpk_mlp_scratch(&net)), np.zeros)
    cdef double[::1] factors = aligned(dpk_mlp_room(held) * net.n_factors)
    with nogil:
        status = kernels.mlp_gradient(&records.c, &net, &params[0, 0, 0], params.shape[1], unit,
                                      &work.c, &weights[0], &scratch[0], &factors[0], &out[0, 0])
    check(status)


cdef class Lapack:
    """LAPACK's routines where scipy keeps them for Cython, as C calls them."""
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


cdef int find(dict functions, str name, void *pointer) except -1:
    """Writes the address of a function whose integers are C's int."""
    capsule = functions[name]
    cdef const char *signature = PyCapsule_GetName(capsule)
    if b", int *, " not in signature:
        raise ImportError(f"scipy's {name} is {signature.decode()}; it must count in C's int")
    cdef void *function = PyCapsule_GetPointer(capsule, signature)
    memcpy(pointer, &function, sizeof(function))
    return 0


NEWTON_MAX = DPK_NEWTON_MAX


def newton_direction(const double[:, :, ::1] H, const double[:, ::1] g, double floor,
                     Lapack lapack, double[:, ::1] out, int n_threads):
    cdef intptr_t m = out.shape[0], d = out.shape[1]
    cdef dpk_status status
    n_threads = max(1, min(n_threads, m))
    cdef double[::1] work = np.empty(n_threads * dpk_newton_work(d))
    cdef int[::1] iwork = np.empty(n_threads * dpk_newton_iwork(d), dtype=np.intc)
    with nogil:
        status = kernels.newton_direction(m, d, &H[0, 0, 0], &g[0, 0], floor, &lapack.c,
                                          n_threads, &work[0], &iwork[0], &out[0, 0])
    check(status, "H")


_use_isa(None)
