def mlp_gradient(data, const double[:, :, ::1] params, const intptr_t[::1] sizes, int activation,
                 Loss loss, double clip, double gradient_clip, double unit,
                 const double[::1] grid, const double[::1] silo_weight, rows, double[:, ::1] out,
                 int n_threads):
    """params: (points, m or 1, P); loss: None is softmax; gradient_clip: of differences; unit: 0
    for floating-point sums."""
    cdef Records records = Records(data, rows)
    records.require_unweighted()
    cdef Work work = work_of(records.offsets, DPK_MLP_BLOCK, 0, n_threads, clip, grid, silo_weight)
    cdef dpk_mlp net
    net.depth, net.points = sizes.shape[0] - 1, params.shape[0]
    net.activation, net.gradient_clip = <dpk_activation> activation, gradient_clip
    net.loss = NULL if loss is None else &loss.c
    cdef char[::1] layers = np.empty(net.depth * sizeof(dpk_layer), dtype=np.int8)
    dpk_mlp_layout(first(sizes), <dpk_layer *> &layers[0], &net)
    cdef int threads = work.c.n_threads
    cdef intptr_t batch = dpk_mlp_batch(&net, work.c.first_task[records.c.m], threads)
    cdef double[::1] weights = aligned(params.shape[0] * params.shape[1] * net.n_weights)
    cdef double[::1] scratch = aligned(threads * dpk_thread_stride(dpk_mlp_scratch(&net)), np.zeros)
    cdef double[::1] factors = aligned(dpk_mlp_capacity(batch) * net.n_factors)
    with nogil:
        check(kernels.mlp_gradient(
            &records.c, &net, at(&params[0, 0, 0]), params.shape[1], unit, &work.c,
            first(weights), first(scratch), first(factors), at(&out[0, 0])))
