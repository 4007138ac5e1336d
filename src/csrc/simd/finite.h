/* Whether numbers are finite. */
#pragma once

#include "core/dpk.h"

/* DPK_OK, or DPK_ERR_NOT_FINITE. v: (n,). */
dpk_status dpk_all_finite(intptr_t n, const double *v);
