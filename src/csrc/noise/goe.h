/* Symmetric matrices from what was drawn for them. */
#pragma once

#include "core/dpk.h"

/* out[j] gets diagonal[j] and, row by row, above[j] over the diagonal and mirrored below it.
 * diagonal: (m, d); above: (m, d (d - 1) / 2); out: (m, d, d). */
dpk_status dpk_goe(intptr_t m, intptr_t d, const double *diagonal, const double *above,
                   int n_threads, double *out);
