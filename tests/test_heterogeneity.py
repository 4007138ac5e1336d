"""How much silos differ: the variance of their gradients, and the split that sets it."""

import numpy as np
import pytest
import scipy.sparse
from cases import for_each
from makers import Logistic

import dpkern as dpk
from dpkern.solvers import Objective

LOGISTIC = dpk.losses.Logistic()


def records(n=400, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 4))
    return X, np.where(X @ [1.0, -1.0, 0.5, 0.0] + rng.standard_normal(n) > 0.0, 1, -1)


def gradients(X, y, w):
    return (-y / (1.0 + np.exp(y * (X @ w))))[:, np.newaxis] * X


@for_each("weights", ["size", "uniform"])
@for_each("kind", ["dense", "sparse", "single"])
def test_it_is_the_weighted_variance_of_the_silos_mean_gradients(kind, weights):
    X, y = records()
    X = X.astype(np.float32) if kind == "single" else X
    given = scipy.sparse.csr_array(X) if kind == "sparse" else X
    offsets, w = [0, 30, 100, 400], np.array([0.3, -2.0, 0.1, 0.5])
    data = dpk.SiloData(given, y, offsets, row_bound=2.0)
    rows = X * np.minimum(1.0, 2.0 / np.linalg.norm(X, axis=1))[:, np.newaxis]
    g = np.array([m.mean(axis=0) for m in np.split(gradients(rows, y, w), offsets[1:-1])])
    p = np.array([0.075, 0.175, 0.75]) if weights == "size" else np.full(3, 1 / 3)
    variance = sum(p[j] * np.sum((g[j] - p @ g) ** 2) for j in range(3))
    found = Objective(data, LOGISTIC, l2=0.3, weights=weights).heterogeneity(w)
    assert found == pytest.approx(variance, rel=1e-6 if kind == "single" else 1e-12)


@for_each("dtype", [np.float64, np.float32])
def test_a_model_that_is_not_linear_has_it_too(dtype):
    X, y = records(n=700)
    data = dpk.SiloData(X, y, [0, 300, 700])
    w = np.array([0.3, -2.0, 0.1, 0.5])
    found = Objective(data, Logistic(dtype)).heterogeneity(w)
    assert found == pytest.approx(Objective(data, LOGISTIC).heterogeneity(w), rel=1e-5)
    with pytest.raises(ValueError, match="w must be given for the model 'my logistic'"):
        Objective(data, Logistic()).heterogeneity()
    network = dpk.MLP(hidden=(3,), loss="logistic")
    objective = Objective(data, network)
    start = objective.start()
    g = network.gradients(start, X, y)
    a, b = g[:300].mean(axis=0), g[300:].mean(axis=0)
    expected = 3.0 / 7.0 * 4.0 / 7.0 * np.sum((a - b) ** 2)
    assert objective.heterogeneity(start) == pytest.approx(expected, rel=1e-9)


def test_at_the_minimiser_it_is_the_mean_square_of_the_silos_gradients():
    """The upsilon_*^2 of Lowy, Razaviyayn (2021), of objectives with their penalty."""
    X, y = records()
    data = dpk.SiloData(X, y, [0, 150, 400], row_bound=3.0)
    objective = Objective(data, LOGISTIC, l2=0.1, weights="uniform")
    w = objective.minimum()[0]
    rows = X * np.minimum(1.0, 3.0 / np.linalg.norm(X, axis=1))[:, np.newaxis]
    g = gradients(rows, y, w)
    silos = [g[:150].mean(axis=0) + 0.1 * w, g[150:].mean(axis=0) + 0.1 * w]
    upsilon = np.mean([np.sum(one**2) for one in silos])
    assert objective.heterogeneity() == pytest.approx(upsilon, rel=1e-6)


def test_mixing_silos_takes_it_from_that_of_one_label_to_that_of_one_law():
    X, y = records(n=4000)
    m, w = 8, np.zeros(5)

    def of(how, seed, **more):
        data = dpk.SiloData.split(
            X, y, m, how=how, seed=seed, intercept=True, row_bound=20.0, **more
        )
        return Objective(data, LOGISTIC).heterogeneity(w)

    def mean(how, **more):
        return np.mean([of(how, seed, **more) for seed in range(20)])

    apart, of_one_law = mean("by_label"), mean("even")
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        expected = apart * (1.0 - share) ** 2 + of_one_law * (1.0 - (1.0 - share) ** 2)
        assert mean("mixed", share=share) == pytest.approx(expected, rel=0.1)
    g = gradients(np.column_stack([X, np.ones(4000)]), y, w)
    variance = np.sum(np.var(g, axis=0)) * (m - 1) / 4000  # of silos drawn without replacement
    assert of_one_law == pytest.approx(variance, rel=0.1)
    assert apart > 50.0 * of_one_law


def test_equal_silos_do_not_differ():
    X, y = records(n=60)
    data = dpk.SiloData(np.vstack([X, X]), np.append(y, y), [0, 60, 120])
    assert Objective(data, LOGISTIC).heterogeneity(np.ones(4)) == 0.0
    assert Objective(dpk.SiloData(X, y, [0, 60]), LOGISTIC).heterogeneity(np.ones(4)) == 0.0
