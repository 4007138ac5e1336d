"""Laws of models that are not linear: what they compute, predict and keep in files."""

import math

import numpy as np
import pytest
import scipy.sparse

import dpkern as dpk
from dpkern import kernels
from dpkern.oracles import MLP, Oracle, load_oracle


def make_data(kind="multiclass", n=90, p=4, m=3, seed=0, **options):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    if kind == "multiclass":
        y, options = np.argmax(X[:, :3], axis=1), options | {"task": kind, "classes": [0, 1, 2]}
    else:
        y = np.where(X[:, 0] > 0.1, "b", "a") if kind == "classification" else X[:, 0]
    return dpk.SiloData.split(X, y, m, rng=seed, **options)


CASES = [
    (MLP((5,)), "multiclass"),
    (MLP((), loss="softmax"), "multiclass"),
    (MLP((3, 4), activation="tanh"), "classification"),
    (MLP((6,), activation="tanh", loss="logistic"), "classification"),
    (MLP((6,), loss="squared"), "regression"),
]


@pytest.mark.parametrize(("mlp", "kind"), CASES, ids=str)
def test_the_kernels_gradient_and_that_of_records_are_the_derivative_of_the_losses(mlp, kind):
    data = make_data(kind, row_bound=1.5)
    w = mlp.start(data)
    assert w.shape == (mlp.dim(data),)
    X = data.transform.apply(data.X)
    how = {"layers": mlp.layers(data), "activation": mlp.activation, "loss": mlp.loss}
    g = kernels.mlp_gradient(data, w, clip=math.inf, **how).sum(axis=0)
    np.testing.assert_allclose(mlp.gradients(w, X, data.y).sum(axis=0), g, rtol=1e-10, atol=1e-12)
    rng = np.random.default_rng(1)
    for _ in range(3):
        v, t = rng.standard_normal(w.size), 1e-6
        up, down = (mlp.losses(w + s * t * v, X, data.y).sum() for s in (1.0, -1.0))
        assert (up - down) / (2.0 * t) == pytest.approx(float(g @ v), rel=1e-5, abs=1e-6)


def test_the_start_is_a_function_of_the_seed_and_of_public_sizes():
    first, second = make_data(seed=0), make_data(seed=1)
    np.testing.assert_array_equal(MLP((5,)).start(first), MLP((5,)).start(second))
    assert not np.array_equal(MLP((5,)).start(first), MLP((5,), seed=1).start(first))
    layer = MLP((50,)).start(first)[: 50 * 5]
    assert 0.45 < np.abs(layer).max() <= 0.5  # 4 inputs


@pytest.mark.parametrize(("mlp", "kind"), CASES, ids=str)
def test_a_fitted_perceptron_predicts_also_from_a_file(mlp, kind, tmp_path):
    data = make_data(kind)
    result = dpk.solve(
        "minibatch_sgd", data, budget=None, loss=mlp, rounds=400, step_size=0.3, monitor="train"
    )
    X = data.X
    y = data.y if data.classes_ is None else data.classes_[np.maximum(data.y, 0).astype(int)]
    if kind != "regression":
        y = data.classes_[data.y.astype(int) if kind == "multiclass" else (data.y > 0).astype(int)]
        assert result.history["accuracy"][-1] == pytest.approx(result.score(X, y), abs=0.02)
    assert result.score(X, y) > 0.9
    assert result.history["objective"][-1] < 0.5 * result.history["objective"][0]
    result.save(tmp_path / "model.npz")
    loaded = dpk.load(tmp_path / "model.npz")
    assert loaded.oracle == mlp
    np.testing.assert_array_equal(loaded.predict(X), result.predict(X))


def test_a_guess_of_smoothness_shortens_the_differences_of_spider_at_the_same_cost(tmp_path):
    data, longest, budget = make_data(), {}, dpk.Budget(mu=1.0)
    for beta in (0.5, math.inf):
        result = dpk.solve(
            "spider",
            data,
            budget=budget,
            clip=1.0,
            loss=MLP((5,), smoothness=beta),
            rounds=6,
            step_size=0.01,
            rng=0,
        )
        assert result.privacy.mu == pytest.approx(1.0)
        longest[beta] = max(
            np.max(release.sensitivity)
            for release in result.privacy.releases
            if "differences" in release.what
        )
        result.save(tmp_path / "model.npz")
        assert dpk.load(tmp_path / "model.npz").oracle == MLP((5,), smoothness=beta)
    assert longest[math.inf] == pytest.approx(4.0, rel=1e-3)
    assert longest[0.5] < 0.2
    with pytest.raises(ValueError, match=r"smoothness must .*got 0\.0"):
        MLP(smoothness=0.0)


class Logistic(Oracle):
    """What the logistic loss is, as a model of the user's own."""

    name = "my logistic"

    def dim(self, data):
        return data.n_features

    def gradients(self, w, X, y):
        return (-y / (1.0 + np.exp(y * (X @ w))))[:, np.newaxis] * X

    def outputs(self, w, X):
        return X @ w


def test_a_users_model_is_not_kept_in_a_file_and_says_so(tmp_path):
    data = make_data("classification")
    how = {"budget": None, "rounds": 50, "step_size": 0.5}
    result = dpk.solve("minibatch_sgd", data, loss=Logistic(), **how)
    labels = data.classes_[(data.y > 0).astype(int)]
    assert result.score(data.X, labels) > 0.9
    result.save(tmp_path / "model.npz")
    loaded = dpk.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(loaded.w, result.w)
    with pytest.raises(ValueError, match="'my logistic' is the user's own"):
        loaded.predict(data.X)
    loaded.save(tmp_path / "again.npz")
    assert dpk.load(tmp_path / "again.npz").oracle == load_oracle({"name": "my logistic"})


@pytest.mark.parametrize(("mlp", "kind"), CASES, ids=str)
def test_probabilities_are_those_that_the_loss_is_the_logarithm_of(mlp, kind):
    data = make_data(kind)
    how = {"budget": None, "rounds": 2, "step_size": 0.3}
    result = dpk.solve("minibatch_sgd", data, loss=mlp, **how)
    if mlp.loss == "squared":
        with pytest.raises(ValueError, match="this model has 'squared'"):
            result.predict_proba(data.X)
        return
    found = result.predict_proba(data.X)
    assert found.shape == (data.n, len(data.classes_))
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-12)
    place = np.maximum(data.y, 0.0).astype(int)
    of_label = found[np.arange(data.n), place]
    rows = data.transform.apply(data.X)
    np.testing.assert_allclose(-np.log(of_label), mlp.losses(result.w, rows, data.y), rtol=1e-9)


@pytest.mark.parametrize(
    ("method", "value", "error", "message"),
    [
        ("dim", 4.0, TypeError, "dim of 'my logistic' is 4.0; it must be an integer"),
        ("dim", 0, ValueError, "dim of 'my logistic' is 0"),
        ("gradients", [[0.0] * 4], TypeError, "gradients of 'my logistic' must be .* got list"),
        ("gradients", None, TypeError, "gradients of 'my logistic' must be .* got NoneType"),
    ],
)
def test_what_a_users_model_returns_is_refused_by_name(method, value, error, message):
    model = type("Wrong", (Logistic,), {method: lambda *_: value})()
    with pytest.raises(error, match=message):
        dpk.solve("spider", make_data("classification"), budget=None, loss=model, step_size=0.1)


def test_gradients_of_the_wrong_shape_are_refused_by_name():
    class Wrong(Logistic):
        def gradients(self, w, X, y):
            return super().gradients(w, X, y)[:, :-1]

    with pytest.raises(ValueError, match="gradients of 'my logistic' must have one row per record"):
        dpk.solve("spider", make_data("classification"), budget=None, loss=Wrong(), step_size=0.1)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"hidden": 64}, TypeError, "hidden"),
        ({"hidden": (0,)}, ValueError, "hidden"),
        ({"activation": "gelu"}, ValueError, "activation"),
        ({"loss": "cross"}, ValueError, "loss"),
        ({"seed": -1}, ValueError, "seed"),
    ],
)
def test_bad_perceptrons_are_refused_by_name(options, error, message):
    with pytest.raises(error, match=message):
        MLP(**options)


def test_models_and_data_that_do_not_fit_are_refused():
    how = {"budget": None, "step_size": 0.1, "rounds": 2}
    for loss, data, error, message in [
        (MLP(), make_data("regression"), ValueError, "softmax"),
        (MLP(loss="logistic"), make_data(), ValueError, "several classes"),
        (MLP(), make_data("classification", intercept=True), ValueError, "intercept"),
        ("logistic", make_data(), ValueError, "multiclass"),
    ]:
        with pytest.raises(error, match=message):
            dpk.solve("spider", data, loss=loss, **how)
    with pytest.raises(TypeError, match="gradient_descent is for linear models"):
        dpk.solve("gradient_descent", make_data("classification"), loss=MLP(), **how)
    with pytest.raises(ValueError, match="step_size='theorem'"):
        dpk.solve("spider", make_data("classification"), budget=None, loss=MLP())


# ------------------------------------------------------------------------- what they stand on


@pytest.mark.parametrize("sparse", [False, True])
def test_sums_over_records_alone_are_their_gradients(sparse):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 4)) * (rng.random((20, 4)) < 0.5)
    y = np.where(rng.random(20) < 0.5, -1.0, 1.0)
    stored = scipy.sparse.csr_array(X) if sparse else X
    data = dpk.SiloData(stored, y, [0, 7, 20], row_bound=1.0, intercept=True)
    chosen = np.array([3, 4, 11, 19])
    alone = data.each_alone(chosen)
    assert (alone.m, alone.n) == (4, 4)
    w = rng.standard_normal(5)
    found = kernels.glm_gradient(alone, w, loss="logistic", clip=math.inf)
    rows = data.transform.apply(X)[chosen]
    z = rows @ w
    expected = (-y[chosen] / (1.0 + np.exp(y[chosen] * z)))[:, np.newaxis] * rows
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_loss_values_are_those_that_are_summed_up():
    data = make_data("classification")
    z = kernels.glm_margins(data, np.ones(4))
    for loss in ("logistic", dpk.losses.SmoothedHinge(0.5)):
        values = kernels.loss_values(data.y, z, loss=loss)
        sums = kernels.glm_losses(data, np.ones(4), loss=loss)
        np.testing.assert_allclose(np.add.reduceat(values, data.offsets[:-1]), sums, rtol=1e-13)
    with pytest.raises(ValueError, match="one shape"):
        kernels.loss_values([1.0], [1.0, 2.0], loss="logistic")
