/* Choice of the instruction set: compiled for the baseline instruction set, so it runs everywhere.
 */
#include <fenv.h>
#include <stddef.h>
#include "core/dispatch.h"

extern const dpk_kernels dpk_kernels_base, dpk_kernels_v3, dpk_kernels_v4;

static int runs_base(void) { return 1; }
#ifdef DPK_HAVE_V3
static int runs_v3(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}
#endif
#ifdef DPK_HAVE_V4
static int runs_v4(void) {
#ifdef DPK_AVX512_IN_C /* tests/avx512_in_c.h */
    return runs_v3();
#endif
    return runs_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#endif

/* One row per instruction set, best first. */
static const struct {
    const dpk_kernels *kernels;
    int (*runs)(void);
} isa_table[] = {
#ifdef DPK_HAVE_V4
    {&dpk_kernels_v4, runs_v4},
#endif
#ifdef DPK_HAVE_V3
    {&dpk_kernels_v3, runs_v3},
#endif
    {&dpk_kernels_base, runs_base},
};
enum { N_ISA = sizeof isa_table / sizeof isa_table[0] };

const dpk_kernels *dpk_isa(int i) {
    for (int k = 0; k < N_ISA; k++)
        if (isa_table[k].runs() && i-- == 0)
            return isa_table[k].kernels;
    return NULL;
}

/* Tested by adding: fegetround() reads the x87 control word, while the kernels obey the SSE one. */
static int rounds_to_nearest(void) {
    const volatile double one = 1.0, above_half = 0x1.8p-53, below_half = 0x1p-54;
    return one + above_half == 0x1.0000000000001p0 && one + below_half == 1.0;
}

/* Whether denormals count as zeros is a setting of each thread too. The threads of OpenMP's pool
 * keep theirs when the caller's changes (a library compiled with -ffast-math does that when it is
 * loaded), and what a record adds to a sum would depend on the thread that adds it, and so on the
 * other records. They are set and not refused: the number of threads may follow from that of the
 * records. */
dpk_status dpk_check_rounding(int n_threads) {
    int nearest = rounds_to_nearest();
    /* A team of one would still be set up. */
    if (n_threads > 1) {
        fenv_t own;
        nearest = nearest && fegetenv(&own) == 0;
#pragma omp parallel num_threads(n_threads) reduction(&& : nearest)
        nearest = nearest && fesetenv(&own) == 0 && rounds_to_nearest();
    }
    return nearest ? DPK_OK : DPK_ERR_ROUNDING_MODE;
}

/* Tested by halving: what a control word says differs by processor. */
int dpk_flushes_denormals(void) {
    const volatile double denormal = 0x1p-1074, least_normal = 0x1p-1022, half = 0.5;
    return denormal == 0.0 || least_normal * half == 0.0;
}
