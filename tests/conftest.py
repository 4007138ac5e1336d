"""Data makers shared by the tests."""

import ctypes
import math
import os
import platform
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import scipy.sparse
from cases import KEYS, Chosen
from makers import spy_on

from dpkern import _core, stream
from dpkern.auditing import audits
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.privacy.mechanisms.hessian import GaussianHessian
from dpkern.solvers.base import Run

# A release must not depend on luck: automatic runs try the same examples every time, people's own
# runs new ones.
hypothesis.settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    hypothesis.settings.load_profile("ci")


stream.secrets = audits.secrets = KEYS


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef, request):
    KEYS.restart(f"{request.node.nodeid} {fixturedef.argname}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    KEYS.restart(item.nodeid)


@dataclass
class Records:
    """What a kernel reads of a SiloData, with nothing checked: for adversarial inputs."""

    X: np.ndarray | scipy.sparse.csr_array
    y: np.ndarray
    offsets: np.ndarray
    intercept: bool = False
    row_bound: float = math.inf
    scale: np.ndarray | None = None
    shift: np.ndarray | None = None
    row_norms: np.ndarray | None = None
    record_weight: np.ndarray | None = None
    margin_offset: np.ndarray | None = None
    task: str = "classification"
    classes: np.ndarray | None = None

    def __post_init__(self):
        self.offsets = np.asarray(self.offsets, dtype=np.int64)
        if scipy.sparse.issparse(self.X):
            # The dtypes of a SiloData's; scipy chooses others when it takes rows.
            self.X = scipy.sparse.csr_array(self.X)
            self.X.indices = self.X.indices.astype(np.int32)
            self.X.indptr = self.X.indptr.astype(np.int64)
        self.m = len(self.offsets) - 1
        self.n = len(self.y)
        self.n_features = self.X.shape[1]
        self.d = self.n_features + self.intercept


def make_records(
    n=300,
    p=11,
    m=4,
    *,
    dtype=np.float64,
    affine=False,
    csr=False,
    weighted=False,
    seed=0,
    **options,
):
    """Random records; in CSR form a third of the entries is stored, and some rows are empty.

    Some of the weights are 0 and 1.
    """
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)).astype(dtype)
    if csr:
        X[rng.random((n, p)) > 0.35] = 0.0
        X[::7] = 0.0
        X = scipy.sparse.csr_array(X)
    y = np.where(rng.random(n) < 0.5, -1.0, 1.0)
    cuts = np.sort(rng.choice(np.arange(1, n), size=m - 1, replace=False))
    if affine:
        options["scale"] = rng.uniform(0.1, 2.0, p)
        options["shift"] = None if csr else rng.standard_normal(p)
    if weighted:
        options["record_weight"] = np.clip(rng.uniform(-0.2, 1.2, n), 0.0, 1.0)
        options["margin_offset"] = rng.standard_normal(n)
    return Records(X, y, np.concatenate([[0], cuts, [n]]), **options)


@pytest.hookimpl(tryfirst=True)  # before marks deselect
def pytest_addoption(parser):
    parser.addoption("--cases", metavar="TEXT", default="", help="of `for_each`, those named so")


def pytest_configure(config):
    Chosen.text = config.getoption("--cases")


def pytest_collection_modifyitems(items):
    """Mark the cases of instruction sets other than the best one and the portable one."""
    others = set(_core.isa_names()[1:]) - {"base"}
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is not None and callspec.params.get("isa") in others:
            item.add_marker("isa")


@pytest.fixture(params=_core.isa_names())
def isa(request):
    """Every instruction set that this machine runs, in turn."""
    before = _core.isa()
    _core._use_isa(request.param)
    yield request.param
    _core._use_isa(before)


@pytest.fixture
def round_by_round(monkeypatch):
    """Every solver runs its own loop over rounds, whose bits the compiled one has."""
    monkeypatch.setattr(Run, "is_watched", True)


@pytest.fixture
def spied(monkeypatch, round_by_round):
    """(mechanism, exact sums, what was released) of every release of sums."""
    return spy_on(monkeypatch, GaussianSum, GaussianHessian)


@pytest.fixture
def make():
    return make_records


@pytest.fixture
def bare_records():
    return Records


@pytest.fixture(scope="session")
def real_data():
    """Folder of public data sets; see the README."""
    folder = os.environ.get("DPKERN_DATA")
    if not folder:
        pytest.skip("DPKERN_DATA is not set: no public data sets here")
    return Path(folder)


@pytest.fixture(scope="session")
def source_tree():
    root = Path(__file__).parents[1]
    if not (root / "src" / "dpkern").is_dir():
        pytest.skip("the source tree is not here")
    return root


def count_steps(v, grid):
    """The integers v / grid, exactly; fails where v is not on the grid."""
    k = np.asarray(v) / grid
    assert np.all(np.isfinite(k))
    assert np.all(k == np.rint(k))
    assert np.all(np.abs(k) <= 2.0**53)
    return [int(t) for t in k.ravel()]


@pytest.fixture(scope="session")
def steps():
    return count_steps


@pytest.fixture(scope="session")
def longer():
    """Whether |v| > bound in exact rational arithmetic, v on the grid."""

    def longer(v, grid, bound):
        square = sum(k * k for k in count_steps(v, grid))
        return square * Fraction(grid) ** 2 > Fraction(bound) ** 2

    return longer


@pytest.fixture(scope="session")
def control_bits():
    """Context manager that sets bits of the SSE control word of this thread."""
    if platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc":
        pytest.skip("fenv_t is known here for x86-64 glibc only")
    libm = ctypes.CDLL("libm.so.6")

    @contextmanager
    def control_bits(bits):
        before, during = (ctypes.c_uint32 * 8)(), (ctypes.c_uint32 * 8)()
        libm.fegetenv(before)
        libm.fegetenv(during)
        during[7] |= bits  # fenv_t: seven words of x87 state, then MXCSR
        libm.fesetenv(during)
        try:
            yield
        finally:
            libm.fesetenv(before)

    return control_bits
