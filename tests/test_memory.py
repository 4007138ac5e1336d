"""Properties of memory: a fit on data in silo order holds X once.

NumPy tells tracemalloc of every array, the kernels allocate none, and pages of a memory map are the
file's: so the peak that it finds is what a fit takes beside its input.
"""

import inspect

import numpy as np
import pytest
import scipy.sparse
from cases import for_each
from makers import peak_memory

import dpkern as dpk
from dpkern.estimators import DPLogisticRegression
from dpkern.solvers import SOLVERS

N, P, M = 100_000, 40, 8
FIXED = 1 << 18  # bytes of a run that do not grow with the records


@pytest.fixture(scope="module")
def records():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, P))
    y = np.where(rng.random(N) < 0.5, -1.0, 1.0)
    return X, y


def in_layout(X, layout, folder):
    """X in this layout, and its bytes."""
    if layout == "csr":
        X = scipy.sparse.csr_array(np.where(np.arange(P) % 4 == 0, X, 0.0))
        return X, X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
    if layout == "memory map":
        np.save(folder / "X.npy", X)
        X = np.load(folder / "X.npy", mmap_mode="r")
    if layout == "float32":
        X = X.astype(np.float32)
    return X, X.nbytes


@pytest.mark.parametrize("solver", [*SOLVERS, "admm, silos"])
def test_a_fit_takes_a_tenth_of_its_input_and_16_bytes_a_row_at_most(records, solver, tmp_path):
    solver, *users = solver.split(", ")
    few = {"rounds": 2, "local_steps": 2, "step_size": 0.1}
    few = {k: few[k] for k in few if k in inspect.signature(SOLVERS[solver]).parameters}
    if solver == "newton_inference":
        few = {"rounds": 4}
    if solver == "local_newton":
        few["trust"] = "silo"  # which local steps need
    if solver == "objective_perturbation":
        few = {"added_l2": 1.0}  # with which few steps suffice
    if solver == "admm":
        few = {"rounds": 2} | ({"users": users[0]} if users else {})

    def fit(X, y, offsets):
        data = dpk.SiloData(X, y, offsets, row_bound=1.0, intercept=True)
        budget = dpk.Budget(epsilon=1.0, delta=1e-6)
        return dpk.solve(solver, data, budget=budget, clip=1.0, l2=1e-3, **few)

    rows, y = records
    for layout in ("float64", "float32", "memory map", "csr"):
        X, size = in_layout(rows, layout, tmp_path)
        fit(X[: 100 * M], y[: 100 * M], 100 * np.arange(M + 1))  # what is loaded late
        _, peak = peak_memory(fit, X, y, N // M * np.arange(M + 1))
        # Whitened rows are kept.
        dense = 8 * N * (P + 1) if solver == "newton_inference" else 0
        most = 0.1 * (size + y.nbytes) + 16 * N + FIXED
        assert peak <= (most if not dense else dense + 96 * N), layout


@for_each("rounds", [6, 60])
def test_a_wide_sparse_fit_takes_200_bytes_a_column(rounds):
    rng, d = np.random.default_rng(0), 200_000
    where = np.repeat(np.arange(600), 10), rng.integers(0, d, 6000)
    X = scipy.sparse.csr_array((np.ones(6000), where), shape=(600, d))
    model = DPLogisticRegression(1.0, 1e-5, row_bound=2.0, classes=[0, 1])
    model.set_params(solver_params={"rounds": rounds})
    y = np.arange(600) % 2
    model.fit(X[:, :10], y)  # what is loaded late
    _, peak = peak_memory(model.fit, X, y)
    assert peak <= 200 * d + FIXED
