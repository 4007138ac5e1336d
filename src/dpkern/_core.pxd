# cython: language_level=3
"""Declarations of C for _core.pyx: types, sizes of work space, and the table of kernels."""

from libc.stdint cimport int32_t, int64_t, intptr_t, uint8_t, uint32_t, uint64_t


cdef extern from "core/dpk.h":
    ctypedef enum dpk_status:
        DPK_OK
        DPK_ERR_ROUNDING_MODE
        DPK_ERR_NO_CONVERGENCE
        DPK_ERR_NOT_FINITE
    ctypedef void (*dpk_loss_fn)(...) noexcept nogil
    ctypedef void (*dpk_prox_fn)(...) noexcept nogil
    ctypedef double (*dpk_smooth_fn)(double norm) noexcept nogil
    ctypedef struct dpk_loss:
        const char *name
        dpk_loss_fn block
        dpk_loss_fn majorants
        int checked
        void *params
    ctypedef struct dpk_data:
        intptr_t m, p, d
        const void *X
        int x_is_float32
        const void *indptr
        int indptr_is_int32
        const int32_t *indices
        const double *y
        const double *norm
        const double *scale
        const double *shift
        const int64_t *rows
        const int64_t *offsets
        double row_bound
        int intercept
        const double *record_weight
        const double *margin_offset
    intptr_t dpk_padded(intptr_t d) nogil
    intptr_t dpk_thread_stride(intptr_t n) nogil
    ctypedef struct dpk_earlier:
        double clip
        double curvature
        const double *w
        const double *z
        intptr_t w_stride
        double *z_new
    ctypedef struct dpk_sum:
        double clip
        const double *grid
        const double *silo_weight
        intptr_t task_rows
        const int64_t *first_task
        double *partial
        int n_threads


cdef extern from "core/dispatch.h":
    const intptr_t DPK_WIDE
    ctypedef struct dpk_named_prox:
        const char *name
        dpk_prox_fn apply
    ctypedef struct dpk_named_smooth:
        const char *name
        dpk_smooth_fn factor
    ctypedef struct dpk_named_vmath:
        const char *name
        void (*apply)(intptr_t n, const double *x, double *out) noexcept nogil
    ctypedef struct dpk_descent:
        intptr_t steps, batch, penalized
        const double *step_size
        const double *prox_params
        const double *sigma
        double l2, anchor, smooth_strength, prox_strength
        dpk_smooth_fn smooth
        dpk_prox_fn prox
        const uint32_t *key
        uint32_t purpose
    intptr_t dpk_hessian_size(intptr_t d) nogil
    intptr_t dpk_hessian_scratch(intptr_t d) nogil
    ctypedef struct dpk_coin_law:
        const uint64_t *top
        const uint64_t *rest
        const int64_t *guide
    int64_t dpk_subset_words(int64_t n, int64_t k) nogil
    ctypedef struct dpk_sweep:
        double prox_step, relaxation, prox_bound, bound, grid
        double *start "from"
        double *to
        int shared
        double *common
        double *scale
        const uint32_t *key
        uint32_t purpose
        double sigma
    ctypedef struct dpk_prox_step:
        dpk_prox_fn apply
        double gamma
        const double *params
    ctypedef struct dpk_admm:
        intptr_t rounds, penalized
        const int64_t *bounds
        double n, shrink
        dpk_prox_step prox[2]
        const uint32_t *key
        uint32_t purpose
        double sigma
        double *work
    intptr_t dpk_sweep_rows(intptr_t d) nogil
    ctypedef struct dpk_search:
        intptr_t count
        const double *step
        const double *bound
        const double *grid
    ctypedef struct dpk_models:
        intptr_t count, stride, w_stride
        const double *w
        const double *clip
        const double *grid
    ctypedef struct dpk_samples:
        const int64_t *counts
        const uint64_t *last
        uint32_t purpose
        intptr_t ahead
        intptr_t places
        int n_threads
        int64_t n_words, room
        uint64_t *words
        int64_t *numbers
        int64_t *bounds
        int64_t *first_task
    ctypedef struct dpk_rounds:
        intptr_t rounds, penalized, keys
        const dpk_samples *samples
        double scale
        const double *step_size
        const double *momentum
        const double *start
        const double *l2
        const double *gamma
        const double *prox_params
        const double *sigma
        dpk_prox_fn prox
        const uint32_t *key
        uint32_t purpose
        int saturate, noise_threads, noisy
        double *w
        double *sums
        double *work
    intptr_t dpk_gradients_scratch(const dpk_data *data, intptr_t count) nogil
    intptr_t dpk_products_scratch(intptr_t d, intptr_t count, int n_threads) nogil
    intptr_t dpk_kept_rows(const dpk_data *data, int64_t records, intptr_t rounds) nogil
    ctypedef struct dpk_persons:
        const int64_t *silos
        const int64_t *offsets
        double clip
        int64_t few
    intptr_t dpk_persons_scratch(const dpk_data *data) nogil
    intptr_t dpk_hessians_size(intptr_t d) nogil
    intptr_t dpk_hessians_scratch(intptr_t d) nogil
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
    intptr_t dpk_mlp_batch(const dpk_mlp *net, int64_t blocks, int n_threads) nogil
    intptr_t dpk_mlp_capacity(intptr_t batch) nogil
    intptr_t dpk_descent_noise(const dpk_descent *run, intptr_t d) nogil
    ctypedef enum dpk_path:
        DPK_PATH_FAST
    const int DPK_CHUNK_WORDS
    void dpk_wipe(void *memory, size_t size) nogil


include "kernels.pxi"

cdef extern from "gpu_source.h":
    const char gpu_source_text[]

cdef extern from "core/dispatch.h":
    const dpk_kernels *dpk_isa(int i)
    dpk_status dpk_check_rounding(int n_threads) nogil
    int dpk_flushes_denormals() nogil
