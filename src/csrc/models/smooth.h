/* Smooth regularisers of the form r(w) = f(|w|), by their factor f'(|w|) / |w|: the gradient is the
 * factor times w.
 *
 * Each is one function here and one row in DPK_SMOOTH_LIST; its bounds are in penalties.py. */
#pragma once

#include <math.h>
#include "core/dpk.h"

/* r(w) = |w|^2 + 3 sin^2 |w| (Karimi, Nutini, Schmidt 2016, section 2.2): 2 + 3 sin(2 |w|) / |w|.
 */
static double pl_factor(double norm) {
    return norm > 0.0 ? 2.0 + 3.0 * (sin(2.0 * norm) / norm) : 8.0;
}

#define DPK_SMOOTH_LIST(X) X(pl)
