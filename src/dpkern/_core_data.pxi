cdef class Records:
    """A SiloData, or a minibatch of it, for C. Keeps references to all arrays it points into.

    A SiloData, whose arrays never change, keeps its own in the attribute `_records`."""
    cdef dpk_data c
    cdef object keep
    cdef const int64_t[::1] offsets
    cdef intptr_t n_entries, n_stored

    def __init__(self, data, rows=None):
        cdef Records known = getattr(data, "_records", None)
        if getattr(data, "device", None) is not None:
            raise TypeError(
                "data must be in the memory of the CPU for this kernel, got records on a card, "
                "where gradients, margins and losses of linear models run: use the SiloData before "
                "to_device")
        if known is None:
            self.read(data)
            if hasattr(data, "_records"):
                known = Records.__new__(Records)
                known.copy(self)
                object.__setattr__(data, "_records", known)
        else:
            self.copy(known)
        # Stored norms are not valid in denormals-are-zero mode.
        if dpk_flushes_denormals():
            self.c.norm = NULL
        if rows is not None:
            stored, self.offsets = rows
            self.c.rows, self.c.offsets = first[int64_t](stored), first(self.offsets)
            self.c.m = self.offsets.shape[0] - 1
            self.keep = self.keep, stored

    cdef void copy(self, Records other):
        self.c, self.keep, self.offsets = other.c, other.keep, other.offsets
        self.n_entries, self.n_stored = other.n_entries, other.n_stored

    cdef int read(self, data) except -1:
        # Every attribute is read once, since a property may return another array each time.
        X, labels, factor, offset = data.X, data.y, data.scale, data.shift
        norms, self.offsets = data.row_norms, data.offsets
        weight, shifts = data.record_weight, data.margin_offset
        if hasattr(X, "indptr"):
            values, columns, bounds = X.data, X.indices, X.indptr
        else:
            values, columns, bounds = X.reshape(-1), None, None
        self.n_entries, self.n_stored = values.shape[0], len(labels)
        self.c.X = floats(values)
        self.c.x_is_float32 = values.dtype == np.float32
        self.c.indptr_is_int32 = bounds is not None and bounds.dtype == np.int32
        if self.c.indptr_is_int32:
            self.c.indptr = first[int32_t](bounds)
        else:
            self.c.indptr = first[int64_t](bounds)
        self.c.indices = first[int32_t](columns)
        self.c.y = first[double](labels)
        self.c.norm = first[double](norms)
        self.c.scale = first[double](factor)
        self.c.shift = first[double](offset)
        self.c.rows = NULL
        self.c.offsets = first(self.offsets)
        self.c.m = self.offsets.shape[0] - 1
        self.c.p = X.shape[1]
        self.c.d = data.d
        if data.d != X.shape[1] + bool(data.intercept):
            raise ValueError("data was changed: its columns and d no longer agree")
        self.c.row_bound = data.row_bound
        self.c.intercept = data.intercept
        self.c.record_weight = first[double](weight)
        self.c.margin_offset = first[double](shifts)
        self.keep = values, columns, bounds, labels, norms, factor, offset, weight, shifts
        return 0

    cdef int require_unweighted(self) except -1:
        """Raise where records have weights or margin offsets, which this kernel does not read."""
        if self.c.record_weight != NULL or self.c.margin_offset != NULL:
            raise TypeError(
                "data must have neither weight nor margin_offset for this kernel, got them: sums "
                "of gradients, losses and Hessians of linear models read both")
        return 0

    cdef void join_silos(self):
        """All records as one silo."""
        cdef int64_t n = self.offsets[self.offsets.shape[0] - 1]
        self.offsets = np.array([0, n], dtype=np.int64)
        self.c.offsets, self.c.m = first(self.offsets), 1

    cdef intptr_t task_rows(self, bint own_vectors=False):
        """Records of one unit of work: enough that adding up partial sums costs little, and few
        enough for a wide problem to have several.

        own_vectors: every record has a vector (d,) that is read beside it. Its sums over records
        are in floating point and public, so their order is no function of how many entries are
        stored, but of the numbers of records and coordinates alone."""
        cdef intptr_t size = self.n_stored * self.c.d if own_vectors else self.n_entries
        cdef intptr_t rows = max(64, min(max(size // 64, 1 << 16), 1 << 19) // self.c.d)
        if self.c.indptr != NULL and self.n_entries > 0 and not own_vectors:
            # A partial sum is dense: it must stay small against the entries that go into it.
            per_row = self.n_entries / <double> self.n_stored
            rows = max(512, <intptr_t> (8.0 * self.c.d / per_row))
        return rows


def task_rows(data):
    """Return the records of one unit of work of `glm_losses`, whose order of sums it fixes."""
    return Records(data).task_rows()


def in_silos(const int64_t[::1] records, const int64_t[::1] bounds, const int64_t[::1] offsets):
    """Return whether records bounds[j] .. bounds[j + 1] - 1 are numbers of silo j for every j."""
    cdef intptr_t i, j
    cdef const int64_t *numbers = first(records)
    cdef bint outside = False
    first(bounds), first(offsets)
    with nogil:
        for j in range(bounds.shape[0] - 1):
            for i in range(bounds[j], bounds[j + 1]):
                outside |= numbers[i] < offsets[j] or numbers[i] >= offsets[j + 1]
    return not outside


cdef const void *floats(values) except? NULL:
    if values.dtype == np.float32:
        return first[float](values)
    return first[double](values)


cdef double[::1] aligned(intptr_t n, make=np.empty):
    """Space for n doubles, aligned to a cache line."""
    cdef double[::1] space = make(n + 8)
    cdef intptr_t skip = (8 - <intptr_t> first(space) // 8 % 8) % 8
    return space[skip:skip + n]


cdef class Models:
    """Models of the silos, one row each or one for all, aligned and padded for the kernels."""
    cdef const double[::1] values
    cdef const double *c
    cdef intptr_t stride


cdef Models models_of(const double[:, ::1] w):
    # No constructor: its arguments are Python objects, and a view would become one and back.
    cdef Models models = Models.__new__(Models)
    cdef intptr_t j, rows = w.shape[0], d = w.shape[1]
    cdef intptr_t width = dpk_padded(d)
    cdef double[::1] values = aligned(max(1, rows * width))
    for j in range(rows):
        memcpy(&values[j * width], &w[j, 0], d * sizeof(double))
    models.values = values
    models.c = first(values)
    models.stride = 0 if rows == 1 else width
    return models


cdef class Work:
    """Work space of one call: tasks per silo, partial sums. shares: threads per task; copies:
    sums per task."""
    cdef dpk_sum c
    cdef int64_t[::1] first_task
    cdef double[::1] partial
    cdef const double[::1] grid, silo_weight


cdef Work work_of(const int64_t[::1] offsets, intptr_t task_rows, intptr_t width, int n_threads,
                  double clip=INFINITY, const double[::1] grid=None,
                  const double[::1] silo_weight=None, int64_t shares=1, intptr_t copies=1):
    cdef Work work = Work.__new__(Work)  # as in `models_of`
    cdef intptr_t j, m = offsets.shape[0] - 1
    cdef int64_t[::1] first_task = np.empty(m + 1, dtype=np.int64)
    first(offsets)
    first_task[0] = 0
    for j in range(m):
        first_task[j + 1] = first_task[j] + (
            offsets[j + 1] - offsets[j] + task_rows - 1) // task_rows
    cdef int64_t n_tasks = first_task[m]
    n_threads = max(1, min(n_threads, n_tasks * shares))
    check(dpk_check_rounding(n_threads))
    cdef double[::1] partial = aligned(
        max(1, copies * n_tasks * dpk_thread_stride(width) if width else 0))
    work.first_task, work.partial, work.grid, work.silo_weight = (
        first_task, partial, grid, silo_weight)
    work.c.clip = clip
    work.c.grid, work.c.silo_weight = first(grid), first(silo_weight)
    work.c.task_rows = task_rows
    work.c.first_task, work.c.partial = first(first_task), first(partial)
    work.c.n_threads = n_threads
    return work


cdef class Loss:
    """A loss of the table by its index, or a user's function, with its parameters."""
    cdef dpk_loss c
    cdef object keep

    def __init__(self, int number, double[::1] params):
        self.keep = params
        self.c = kernels.losses[number]
        self.c.params = first(params)

    def majorant(self):
        """Return a loss of the table whose second derivative is the curvature of its majorants."""
        cdef Loss loss = Loss.__new__(Loss)
        loss.keep, loss.c = self.keep, self.c
        memcpy(&loss.c.block, &self.c.majorants, sizeof(self.c.majorants))
        return loss

    @staticmethod
    def custom(callable):
        """Return the loss of a scipy.LowLevelCallable, whose capsule has function and user data."""
        cdef Loss loss = Loss.__new__(Loss)  # zero-initialised
        capsule = tuple(callable)[0]
        cdef void *function = PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule))
        loss.keep = callable
        memcpy(&loss.c.block, &function, sizeof(function))
        loss.c.params = PyCapsule_GetContext(capsule)
        loss.c.checked = 1
        return loss


ctypedef fused real:
    float
    double


def place_columns(columns, real[:, ::1] out):
    """Write contiguous columns of the same type side by side, a few rows at a time.

    Rows that are written together stay in the first cache, as do the columns' parts.
    """
    cdef intptr_t n = out.shape[0], d = out.shape[1], i, j, last, begin
    cdef const real[::1] column
    cdef uintptr_t[::1] starts = np.empty(len(columns), dtype=np.uintp)
    cdef const real *source
    cdef real *row
    cdef real *top = <real *>first(out[0]) if n else NULL
    if len(columns) != d:
        raise ValueError(f"columns must be as many as out has, {d}, got {len(columns)}")
    for j, column in enumerate(columns):
        if column.shape[0] != n:
            raise ValueError(f"columns must have {n} values, got {column.shape[0]}")
        starts[j] = <uintptr_t>first(column)
    with nogil:
        for begin in range(0, n, 16):
            last = min(begin + 16, n)
            for j in range(d):
                source, row = <const real *>starts[j], top + j
                for i in range(begin, last):
                    row[i * d] = source[i]
