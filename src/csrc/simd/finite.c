/* 0 times NaN or infinity is NaN. */
#include "simd/finite.h"
#include "simd/simd.h"

dpk_status dpk_all_finite(intptr_t n, const double *v) {
    f8 a[4] = {f8_zero(), f8_zero(), f8_zero(), f8_zero()};
    intptr_t k = 0;
    for (; k + 32 <= n; k += 32)
        for (int i = 0; i < 4; i++)
            a[i] = f8_fma(f8_load(v + k + 8 * i), f8_zero(), a[i]);
    for (; k < n; k += 8)
        a[0] = f8_fma(f8_load_part(v + k, n - k), f8_zero(), a[0]);
    return f8_sum(f8_add(f8_add(a[0], a[1]), f8_add(a[2], a[3]))) == 0.0 ? DPK_OK
                                                                         : DPK_ERR_NOT_FINITE;
}
