"""Records, models and losses that the kernels' bounds are tried with; no tests here."""

import math

import numpy as np
from cases import for_each
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpkern.models.losses import LOSSES

FLUSH = 0x8040  # flush-to-zero and denormals-are-zero
# Parameters away from their defaults, as a default of 1 hides a misplaced one: with bounds of all
# derivatives where a loss can have them.
CHOSEN = {"poisson": (-0.7, 0.9, 3.0), "gamma": (-0.7, 0.9, 3.0), "negative_binomial": (0.7, 3.0)}
EVERY_LOSS = [make(*CHOSEN.get(name, [0.7] * len(make().params))) for name, make in LOSSES.items()]
every_loss = for_each("loss", EVERY_LOSS, ids=lambda loss: loss.name)
anywhere = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def models(data, seed=1, scale=0.5):
    return scale * np.random.default_rng(seed).standard_normal((data.m, data.d))


def rows(equal, long):
    """Rows whose norms, squares or entries are hard on floating point; lengths of the last two."""
    return {
        "one": [1.0],
        "zero": [0.0, -0.0],
        "computed norm zero": [3e-170, 4e-170],
        "squares denormal": [1e-160, 2e-161],
        "denormal": [5e-324, 2e-310, -1e-315],
        "squares overflow": [1e300, -1e300, 1.0],
        "largest": [1.7976931348623157e308] * 3,
        "square just finite": [1e154, 1e153],
        "all magnitudes": [10.0**e for e in range(-300, 150, 7)],
        "equal": [1.0] * equal,
        "long": np.random.default_rng(0).standard_normal(long),
    }


ROW_OPTIONS = {
    "plain": {},
    "intercept": {"intercept": True},
    "affine": {"affine": True, "intercept": True, "row_bound": 0.7},
    "bounded": {"row_bound": 1e-3},
    "light": {"weight": 1e-9, "offset": -40.0, "intercept": True},
    "far": {"weight": 1.0, "offset": 1e300, "row_bound": 0.7},
}


def one_record(bare_records, x, y, *, affine=False, weight=None, offset=None, **options):
    x = np.asarray(x)
    if weight is not None:
        options |= {"record_weight": np.array([weight]), "margin_offset": np.array([offset])}
    if affine:
        options |= {"scale": np.full(x.size, -1.75), "shift": np.linspace(-1.0, 1.0, x.size)}
    return bare_records(x.reshape(1, -1), np.array([y]), [0, 1], **options)


@st.composite
def random_cases(draw, n=1):
    """X, y, options of the records, w, a clip and a loss."""
    p = draw(st.integers(1, 12))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
    X = draw(hnp.arrays(dtype, (n, p), elements=finite))
    if dtype == np.float64:
        with np.errstate(over="ignore", under="ignore"):
            X = np.clip(np.ldexp(X, draw(st.integers(-1000, 900))), -1e308, 1e308)
    big = st.floats(-1e300, 1e300)
    y = draw(hnp.arrays(np.float64, n, elements=big))
    options = {
        "intercept": draw(st.booleans()),
        "row_bound": draw(st.sampled_from([math.inf, 1e-3, 1.0, 1e200])),
    }
    if draw(st.booleans()):
        options["scale"] = draw(hnp.arrays(np.float64, p, elements=big))
        options["shift"] = draw(hnp.arrays(np.float64, p, elements=big))
    w = draw(hnp.arrays(np.float64, p + options["intercept"], elements=big))
    clip = math.ldexp(draw(st.floats(1.0, 2.0)), draw(st.integers(-300, 300)))
    return X, y, options, w, clip, draw(st.sampled_from(EVERY_LOSS))


def coarsest_grid(clip, dim):
    """Return the coarsest power of two q with q sqrt(dim) <= clip / 32."""
    q = 2.0 ** math.floor(math.log2(clip / 32 / math.sqrt(dim)))
    return q if q * math.sqrt(dim) <= clip / 32 else q / 2  # the logarithm rounds up to a power
