"""Properties of models that are not linear: what they compute, predict and keep in files."""

import itertools
import math
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from cases import for_each
from makers import Logistic, assert_refused

import dpkern as dpk
from dpkern import kernels
from dpkern.data import Transform
from dpkern.kernels.glm import loss_values
from dpkern.models.networks import MLP, load_oracle
from dpkern.models.oracles import Oracle, check_gradients
from dpkern.solvers.base.backends import finish
from dpkern.solvers.releases.record_sums import RecordSums, clipped


def make_data(kind="multiclass", n=90, p=4, m=3, seed=0, **options):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    if kind == "multiclass":
        y, options = np.argmax(X[:, :3], axis=1), options | {"task": kind, "classes": [0, 1, 2]}
    else:
        y = np.where(X[:, 0] > 0.1, "b", "a") if kind == "classification" else X[:, 0]
    return dpk.SiloData.split(X, y, m, seed=seed, **options)


CASES = [
    (MLP((5,)), "multiclass"),
    (MLP((), loss="softmax"), "multiclass"),
    (MLP((3, 4), activation="tanh"), "classification"),
    (MLP((6,), activation="tanh", loss="logistic"), "classification"),
    (MLP((6,), loss="squared"), "regression"),
]


@for_each(("mlp", "kind"), CASES, ids=str)
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


@for_each(("mlp", "kind"), CASES, ids=str)
def test_a_fitted_perceptron_predicts_also_from_a_file(mlp, kind, tmp_path):
    data = make_data(kind)
    result = dpk.solve(
        "minibatch_sgd", data, budget=None, model=mlp, rounds=400, step_size=0.3, monitor="train"
    )
    X = data.X
    y = data.y if data.classes is None else data.classes[np.maximum(data.y, 0).astype(int)]
    if kind != "regression":
        y = data.classes[data.y.astype(int) if kind == "multiclass" else (data.y > 0).astype(int)]
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
            model=MLP((5,), smoothness=beta),
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


class Writer(Logistic):
    """Writes a record to the array of parameters that it is handed."""

    def gradients(self, w, X, y):
        w[:] = X[0]
        return np.zeros((len(y), w.size))

    def losses(self, w, X, y):
        w[:] = X[0]
        return np.zeros(len(y))

    def outputs(self, w, X):
        w[:] = X[0]
        return X @ w


@for_each(
    ("solver", "trust"),
    [
        *itertools.product(
            ("minibatch_sgd", "prox_svrg", "spider"), ("central", "silo", "shuffle")
        ),
        ("local_sgd", "silo"),
    ],
)
def test_what_a_model_writes_to_its_parameters_does_not_reach_the_iterate(solver, trust):
    data = make_data("classification")
    result = dpk.solve(
        solver, data, budget=dpk.Budget(epsilon=1.0, delta=1e-6), clip=1e-9, model=Writer(),
        step_size=1e-9, rounds=2, trust=trust, monitor="train", rng=0,
    )  # fmt: skip
    assert np.abs(result.w).max() < 1e-6


def test_a_users_model_is_not_kept_in_a_file_and_says_so(tmp_path):
    data = make_data("classification")
    how = {"budget": None, "rounds": 50, "step_size": 0.5}
    result = dpk.solve("minibatch_sgd", data, model=Logistic(), **how)
    labels = data.classes[(data.y > 0).astype(int)]
    assert result.score(data.X, labels) > 0.9
    result.save(tmp_path / "model.npz")
    loaded = dpk.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(loaded.w, result.w)
    with pytest.raises(ValueError, match="'my logistic' is the user's own"):
        loaded.predict(data.X)
    loaded.save(tmp_path / "again.npz")
    assert dpk.load(tmp_path / "again.npz").oracle == load_oracle({"name": "my logistic"})


@for_each(("mlp", "kind"), CASES, ids=str)
def test_probabilities_are_those_that_the_loss_is_the_logarithm_of(mlp, kind):
    data = make_data(kind)
    how = {"budget": None, "rounds": 2, "step_size": 0.3}
    result = dpk.solve("minibatch_sgd", data, model=mlp, **how)
    if mlp.loss == "squared":
        with pytest.raises(ValueError, match="this model has 'squared'"):
            result.predict_proba(data.X)
        return
    found = result.predict_proba(data.X)
    assert found.shape == (data.n, len(data.classes))
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-12)
    place = np.maximum(data.y, 0.0).astype(int)
    of_label = found[np.arange(data.n), place]
    rows = data.transform.apply(data.X)
    np.testing.assert_allclose(-np.log(of_label), mlp.losses(result.w, rows, data.y), rtol=1e-9)


@for_each(
    ("method", "value", "message"),
    [
        ("dim", 4.0, "TypeError: dim of 'my logistic' must be an integer, got 4.0"),
        ("dim", 0, "dim of 'my logistic' must be at least 1, got 0"),
        ("gradients", [[0.0] * 4], "TypeError: gradients of 'my logistic' must be .* got list"),
        ("gradients", None, "TypeError: gradients of 'my logistic' must be .* got NoneType"),
    ],
)
def test_what_a_users_model_returns_is_refused_by_name(method, value, message):
    model = type("Wrong", (Logistic,), {method: lambda *_: value})()
    assert_refused(
        message,
        dpk.solve,
        "spider",
        make_data("classification"),
        budget=None,
        model=model,
        step_size=0.1,
    )


def test_gradients_of_the_wrong_shape_are_refused_by_name():
    class Wrong(Logistic):
        def gradients(self, w, X, y):
            return super().gradients(w, X, y)[:, :-1]

    with pytest.raises(ValueError, match="gradients of 'my logistic' must have one row per record"):
        dpk.solve("spider", make_data("classification"), budget=None, model=Wrong(), step_size=0.1)


@for_each(
    ("options", "message"),
    [
        ({"hidden": 64}, "TypeError: hidden"),
        ({"hidden": (0,)}, "hidden"),
        ({"activation": "gelu"}, "activation"),
        ({"loss": "cross"}, "loss"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_perceptrons_are_refused_by_name(options, message):
    assert_refused(message, MLP, **options)


def test_models_and_data_that_do_not_fit_are_refused():
    how = {"budget": None, "step_size": 0.1, "rounds": 2}
    for model, data, message in [
        (MLP(), make_data("regression"), "softmax"),
        (MLP(loss="logistic"), make_data(), "several classes"),
        (MLP(), make_data("classification", intercept=True), "intercept"),
        (None, make_data(), "multiclass"),
    ]:
        assert_refused(message, dpk.solve, "spider", data, model=model, **how)
    labels = make_data("classification")
    with pytest.raises(TypeError, match="model must be None in gradient_descent, which fits linea"):
        dpk.solve("gradient_descent", labels, model=MLP(), **how)
    with pytest.raises(TypeError, match="loss must be a loss, got the model 'mlp': give it as mod"):
        dpk.solve("spider", labels, loss=MLP(), **how)
    with pytest.raises(TypeError, match="loss must be left out beside model"):
        dpk.solve("spider", labels, loss="logistic", model=MLP(), **how)
    with pytest.raises(TypeError, match="model must be None or an Oracle, got Logistic"):
        dpk.solve("spider", labels, model=dpk.losses.Logistic(), **how)
    with pytest.raises(ValueError, match="step_size='auto'"):
        dpk.solve("spider", make_data("classification"), budget=None, model=MLP())


# ------------------------------------------------------------------------- what they stand on


WIDTHS = [3, 100, 8193, 20_011]  # np.einsum works in chunks of 8 192


@for_each("p", WIDTHS)
@for_each("options", [{}, {"intercept": True}, {"affine": True}, {"sparse": True}])
def test_an_effective_row_and_its_margin_are_functions_of_the_row_alone(p, options):
    rng = np.random.default_rng(p)
    X = rng.standard_normal((6, p))
    affine = options.get("affine", False)
    transform = Transform(
        p,
        options.get("intercept", False),
        1.0,
        tuple(rng.uniform(0.5, 2.0, p)) if affine else None,
        tuple(rng.standard_normal(p)) if affine else None,
    )
    rows = scipy.sparse.csr_array(X) if options.get("sparse") else X
    w = rng.standard_normal(transform.d)
    together, margins = transform.apply(rows), transform.margins(rows, w)
    for places in ([0], [1], [5], [4, 2], [3, 5, 0]):
        found = transform.apply(rows[places])
        if options.get("sparse"):
            found, expected = found.toarray(), together[places].toarray()
        else:
            expected = together[places]
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(transform.margins(rows[places], w), margins[places])


@for_each("p", WIDTHS)
def test_a_clipped_vector_is_a_function_of_the_vector_alone(p):
    G = np.random.default_rng(p).standard_normal((6, p))
    together = clipped(G, 1.0)
    np.testing.assert_array_equal(together, np.vstack([clipped(g[np.newaxis], 1.0) for g in G]))


class LastBit(Oracle):
    """A gradient of length 1 whose sign is the last bit of the row: a kink, and a record's own."""

    name = "last bit"

    def dim(self, data):
        return 1

    def gradients(self, w, X, y):
        bits = np.bitwise_xor.reduce(np.ascontiguousarray(X).view(np.int64), axis=1) & 1
        return (2.0 * bits - 1.0)[:, np.newaxis]


@for_each("p", WIDTHS)
def test_a_record_more_moves_the_sum_of_a_users_model_by_the_clip_norm(p):
    rng = np.random.default_rng(0)
    how = {"clip": 1.0, "grid": np.array([2.0**-20]), "silo_weight": None, "rows": None}
    for _ in range(20):
        X, sums = rng.standard_normal((2, p)), []
        for n in (1, 2):
            data = dpk.SiloData(X[-n:], np.ones(n), [0, n], row_bound=1.0, task="regression")
            objective = SimpleNamespace(data=data, dim=1, n_threads=1)
            run = SimpleNamespace(objective=objective, clock=lambda _: nullcontext())
            sums.append(finish(RecordSums(run, LastBit()).gradient(np.zeros(1), **how)))
        assert np.abs(sums[1] - sums[0]) <= 1.0


class EinsumNorm(Logistic):
    """Scales rows by norms that np.einsum adds up."""

    name = "einsum"

    def gradients(self, w, X, y):
        return X / np.sqrt(np.einsum("ij,ij->i", X, X))[:, np.newaxis]


class Centred(Logistic):
    """What batch normalisation does to a batch."""

    name = "centred"

    def gradients(self, w, X, y):
        return X - X.mean(axis=0)


class Numbered(Logistic):
    """Depends on the place in the batch."""

    name = "numbered"

    def gradients(self, w, X, y):
        return X * (1.0 + 2.0**-50 * (np.arange(len(X)) % 2))[:, np.newaxis]


class Distinct(Logistic):
    """Depends on whether two rows are equal."""

    name = "distinct"

    def gradients(self, w, X, y):
        return X * (1.0 + (len({x.tobytes() for x in X}) < len(X)))


class OfZeros(Logistic):
    """A statistic of the batch that moves where a row is zero."""

    name = "of zeros"

    def gradients(self, w, X, y):
        return X * (1.0 + (not X.any(axis=1).all()))


class OfPairs(Logistic):
    """Depends on labels that do not go with their rows, however these are scaled."""

    name = "of pairs"

    def gradients(self, w, X, y):
        strange = (np.abs(X[:, 0]) > np.abs(X[:, 1])) != (y > 0)
        return X * (1.0 + (strange & X.any(axis=1)).any())


@for_each(
    ("oracle", "p", "where"),
    [
        (Distinct(), 4, "beside copies of records"),
        (OfZeros(), 4, "beside other rows and labels"),
        (OfPairs(), 4, "beside other rows and labels"),
        (EinsumNorm(), 8193, "by itself"),
        (EinsumNorm(), 30_000, "by itself"),
        (Centred(), 4, "by itself"),
        (Numbered(), 4, "by itself"),
    ],
)
def test_the_check_finds_gradients_that_depend_on_neighbours_or_places(oracle, p, where):
    data = make_data("classification", n=12, p=p, row_bound=1.0)
    if isinstance(oracle, OfPairs):
        X = np.asarray(data.X)
        data = dpk.SiloData(X, np.abs(X[:, 0]) > np.abs(X[:, 1]), [0, 12], row_bound=1.0)
    message = f"gradients of {oracle.name!r} must depend on .* got others for a record {where}"
    assert_refused(message, check_gradients, oracle, data)


@for_each("dtype", [np.float32, np.float64])
def test_the_check_passes_sparse_gradients_of_records_by_themselves(dtype):
    class Rows(Logistic):
        def gradients(self, w, X, y):
            return X.toarray() * y[:, np.newaxis]

    X = scipy.sparse.random_array((12, 5), density=0.5, rng=0, format="csr", dtype=dtype)
    check_gradients(Rows(), dpk.SiloData(X, [0, 1] * 6, [0, 12]), trials=10)


def test_the_check_finds_gradients_that_are_not_numbers():
    class Broken(Logistic):
        def gradients(self, w, X, y):
            return super().gradients(w, X, y) * np.where(X[:, :1] == X[0, 0], np.nan, 1.0)

    with pytest.raises(ValueError, match="must be finite, got NaN or infinity in 1 of 12"):
        check_gradients(Broken(), make_data("classification", n=12, p=4, row_bound=1.0))


@for_each("p", [4, 8193])
def test_the_check_passes_gradients_of_records_by_themselves(p):
    class Alone(Logistic):
        def gradients(self, w, X, y):
            return np.vstack(
                [super(Alone, self).gradients(w, x[None], y[i : i + 1]) for i, x in enumerate(X)]
            )

    check_gradients(Alone(), make_data("classification", n=12, p=p, row_bound=1.0), trials=10)


@for_each("sparse", [False, True])
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
        values = loss_values(data.y, z, loss=loss)
        sums = kernels.glm_losses(data, np.ones(4), loss=loss)
        np.testing.assert_allclose(np.add.reduceat(values, data.offsets[:-1]), sums, rtol=1e-13)
    with pytest.raises(ValueError, match="one shape"):
        loss_values([1.0], [1.0, 2.0], loss="logistic")
