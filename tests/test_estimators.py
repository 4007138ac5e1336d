"""The estimators take part in scikit-learn's ways, and each fit says what it guarantees."""

import copy
import inspect
import io
import lzma
import os
import pickle
import re
import warnings
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import sklearn
from cases import for_each
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import VotingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import Lasso, LogisticRegression, Ridge
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder
from sklearn.utils.estimator_checks import check_estimator

import dpkern as dpk
from dpkern.data.labels import LABELS_READ
from dpkern.estimators import (
    DPGammaRegressor,
    DPLasso,
    DPLinearSVC,
    DPLogisticRegression,
    DPMLPClassifier,
    DPOrdinalClassifier,
    DPPoissonRegressor,
    DPRidge,
    PrivateSearchCV,
)
from dpkern.solvers.base.options import SHARED, entries, sections

OLD = tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 9)
# scikit-learn knows frames of polars 2 from 1.9 on.
LIBRARIES = (
    ["pandas"] if OLD and not hasattr(pl.DataFrame, "__dataframe__") else ["pandas", "polars"]
)
CLASSIFIERS = (DPLogisticRegression, DPLinearSVC, DPMLPClassifier)
REGRESSORS = (DPRidge, DPLasso)


@pytest.mark.parametrize(
    "estimator",
    [
        *(cls() for cls in (*CLASSIFIERS, *REGRESSORS)),
        DPLogisticRegression(feature_range=(-3.0, 3.0)),
        DPRidge(target_bound=3.0),
        DPOrdinalClassifier(),
        DPOrdinalClassifier(feature_range=(-3.0, 3.0)),
        DPPoissonRegressor(),
        DPPoissonRegressor(max_target=20.0),
        DPGammaRegressor(max_target=20.0),
    ],
    ids=str,
)
def test_scikit_learn_takes_them(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its checks make records that little is learnt of
        found = check_estimator(estimator, on_fail=None, on_skip=None)
    failed = {it["check_name"]: it["exception"] for it in found if it["status"] != "passed"}
    # Skipped unless an environment variable is set before SciPy is imported.
    failed.pop("check_array_api_input", None)
    # Noise hides what 50 records say, and the penalty is for the largest weight, of 1000 here.
    failed.pop("check_class_weight_classifiers", None)
    assert not failed
    assert len(found) > 50


def blobs(n=600, d=4, classes=2, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    X = rng.normal(0.0, 0.3, (n, d)) + np.eye(classes, d)[y]
    return X, y


def targets(n=600, d=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, d))
    return X, X @ np.linspace(-1.0, 1.0, d) + 0.3


def with_entry(values, entry):
    values = values.astype(object)
    values.flat[3] = entry
    return values


@pytest.mark.filterwarnings("ignore:no target_bound was stated")
@for_each("cls", [*CLASSIFIERS, *REGRESSORS])
@for_each("make", [list, pd.DataFrame, np.array], ids=["list", "frame", "array"])
def test_no_message_quotes_a_record(cls, make):
    X, y = np.linspace(-1.0, 1.0, 60).reshape(20, 3), np.arange(20) % 2
    fitted = cls().fit(X, y)
    wrong = [
        (make(with_entry(X, "secret 9137")), y),
        (make(with_entry(X, b"secret 9137")), y),
        (make(with_entry(X, 9137j)), y),
        (np.full(20, 9137.0), y),
        (np.array(9137.0), y),
    ]
    if cls in REGRESSORS:
        wrong.append((X, with_entry(y, "secret 9137")))
    for X, y in wrong:
        calls = [lambda X=X, y=y: cls().fit(X, y)]
        calls += [lambda X=X: fitted.predict(X)] if y.dtype != object else []
        for call in calls:
            with pytest.raises((TypeError, ValueError)) as caught:
                call()
            assert not re.search("9137|secret", str(caught.value))
            assert caught.value.__context__ is None or isinstance(caught.value, TypeError)


@for_each("cls", [*CLASSIFIERS, *REGRESSORS])
def test_every_parameter_is_documented_once(cls):
    described = entries(sections(cls)["Parameters"])
    assert set(described) == set(inspect.signature(cls).parameters)
    assert all(kind and text for kind, text in described.values())
    assert described["trust"] == (f"{SHARED['trust'].kind}, default='central'", SHARED["trust"].doc)


@for_each("cls", CLASSIFIERS)
def test_a_classifier_is_the_solver_with_its_arguments(cls):
    X, y = blobs()
    labels = np.array(["no", "yes"])[y]
    model = cls(2.0, 1e-5, row_bound=1.5, classes=["no", "yes"], random_state=3).fit(X, labels)
    seed = np.random.RandomState(3).randint(2**31 - 1)
    several = cls is DPMLPClassifier
    data = dpk.SiloData.split(
        X,
        labels,
        1,
        seed=0,
        row_bound=1.5,
        classes=["no", "yes"],
        task="multiclass" if several else None,
        intercept=not several,
    )
    fitted = {
        DPLogisticRegression: {"l2": 1.0 / 600},
        DPLinearSVC: {"l2": 1.0 / 600, "loss": "smoothed_hinge"},
        DPMLPClassifier: {"l2": 1e-4 / 600, "model": dpk.MLP(hidden=(100,))},
    }[cls]
    budget = dpk.Budget(epsilon=2.0, delta=1e-5)
    assert model.result_ == dpk.solve("auto", data, budget=budget, rng=seed, **fitted)
    assert model.privacy_.epsilon(1e-5) <= 2.0
    assert model.privacy_.noise == "seeded: not private"
    assert LABELS_READ not in model.privacy_.notes
    np.testing.assert_array_equal(model.predict(X), model.result_.predict(X))
    assert model.score(X, labels) > 0.9
    if cls is not DPLinearSVC:
        found = model.predict_proba(X)
        np.testing.assert_allclose(found.sum(axis=1), 1.0)
        np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), found)


@for_each("cls", REGRESSORS)
def test_a_regressor_is_the_solver_with_its_arguments(cls):
    X, y = targets()
    model = cls(2.0, 1e-5, row_bound=2.3, target_bound=2.0, alpha=0.01, random_state=3).fit(X, y)
    how = {"row_bound": 2.3, "target_bound": 2.0, "intercept": True, "task": "regression"}
    data = dpk.SiloData.split(X, y, 1, seed=0, **how)
    penalty = {"l2": 0.01 / 600} if cls is DPRidge else {"l1": 0.01}
    seed = np.random.RandomState(3).randint(2**31 - 1)
    budget = dpk.Budget(epsilon=2.0, delta=1e-5)
    assert model.result_ == dpk.solve("auto", data, budget=budget, rng=seed, **penalty)
    assert model.score(X, y) > 0.8
    np.testing.assert_allclose(model.predict(X), X @ model.coef_ + model.intercept_, rtol=1e-9)


@for_each("cls", REGRESSORS)
def test_without_noise_a_regressor_has_the_coefficients_of_scikit_learn(cls):
    X, y = targets()
    y += 1.0  # which a penalty of the intercept would pull to 0
    theirs = {DPRidge: Ridge, DPLasso: Lasso}[cls]
    theirs = theirs(alpha=0.3 if cls is DPLasso else 90.0, tol=1e-12).fit(X, y)
    data = dpk.SiloData(X, y, [0, len(y)], task="regression", intercept=True, row_bound=9.0)
    penalty = {"l1": 0.3} if cls is DPLasso else {"l2": 90.0 / len(y)}
    ours = dpk.solve("auto", data, budget=None, rounds=20_000, **penalty)
    np.testing.assert_allclose(ours.coef, theirs.coef_, atol=1e-7)
    np.testing.assert_allclose(ours.intercept, theirs.intercept_, atol=1e-7)


def test_coefficients_are_in_units_of_the_features():
    X, y = blobs()
    X = X * [1.0, 10.0, 100.0, 0.1] + 5.0
    how = {"feature_range": (X.min(0), X.max(0)), "random_state": 0, "epsilon": 0.5}
    model = DPLogisticRegression(**how).fit(X, y)
    margins = X @ model.coef_[0] + model.intercept_
    found = model.result_.calibration.temperature * model.decision_function(X)
    np.testing.assert_allclose(found, margins, rtol=1e-9, atol=1e-9)
    X, y = blobs(classes=3)
    model = DPLogisticRegression(feature_range=(X.min(0), X.max(0)), random_state=0).fit(X, y)
    assert model.coef_.shape == (3, 4)
    scores = X @ model.coef_.T + model.intercept_
    found = model.result_.calibration.temperature * model.decision_function(X)
    np.testing.assert_allclose(found, scores, rtol=1e-9, atol=1e-9)
    model = DPMLPClassifier(hidden_layer_sizes=(5, 6), feature_range=(X.min(0), X.max(0)))
    model.fit(X, y)
    assert [W.shape for W in model.coefs_] == [(4, 5), (5, 6), (6, 3)]
    a = X
    for W, b in zip(model.coefs_, model.intercepts_, strict=True):
        scores = a @ W + b
        a = np.maximum(scores, 0.0)
    np.testing.assert_allclose(model.decision_function(X), scores, rtol=1e-9, atol=1e-9)


def test_several_classes_are_softmax_regression():
    X, y = blobs(3000, classes=3)
    model = DPLogisticRegression(3.0, classes=[2, 1, 0]).fit(X, y)
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.score(X, y) > 0.85
    sparse = clone(model).set_params(random_state=0).fit(scipy.sparse.csr_array(X), y)
    dense = clone(model).set_params(random_state=0).fit(X, y)
    np.testing.assert_allclose(sparse.coef_, dense.coef_, atol=1e-6)
    np.testing.assert_array_equal(sparse.predict(scipy.sparse.csr_array(X)), sparse.predict(X))
    with pytest.raises(ValueError, match="Only binary classification"):
        DPLinearSVC().fit(X, y)
    with pytest.raises(ValueError, match="fit_intercept must be True for several classes"):
        DPLogisticRegression(fit_intercept=False).fit(X, y)


@for_each("spellings", [["no", "NO", "yes", "Yes "], ["yes", "yes "]])
def test_labels_in_several_spellings_are_refused_before_the_charge(tmp_path, spellings):
    X = np.random.default_rng(0).normal(size=(80, 2))
    accountant = dpk.Accountant(tmp_path / "l.json", epsilon=9.0, delta=1e-5)
    y = np.resize(spellings, 80)
    for labels in (y, y.astype(object), pd.Series(y)):
        with pytest.raises(ValueError, match=r"^y must spell every label in one way") as error:
            DPLogisticRegression(accountant=accountant).fit(X, labels)
        assert "Yes" not in str(error.value)
    assert accountant.spent == 0.0
    assert len(DPLogisticRegression(classes=spellings).fit(X, y).classes_) == len(spellings)


@for_each("cls", CLASSIFIERS)
@for_each("order", [["yes", "no"], {"no", "yes"}, pd.Series(["yes", "no"])])
def test_the_order_of_classes_changes_nothing(cls, order):
    X, y = blobs()
    labels = np.array(["no", "yes"])[y]
    how = {"row_bound": 1.5, "random_state": 3}
    sorted_ = cls(2.0, 1e-5, classes=["no", "yes"], **how).fit(X, labels)
    model = cls(2.0, 1e-5, classes=order, **how).fit(X, labels)
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.result_ == sorted_.result_
    np.testing.assert_array_equal(model.decision_function(X), sorted_.decision_function(X))
    assert roc_auc_score(labels == "yes", model.decision_function(X)) > 0.9
    if hasattr(model, "predict_proba"):
        assert log_loss(labels, model.predict_proba(X)) < 0.6


@for_each(
    "classes",
    [(c for c in "ab"), "ab", 2, [["a", "b"]], [["a"], "b"], {"a": 0, "b": 1}, np.array(2), None],
)
@for_each("cls", CLASSIFIERS)
def test_classes_that_are_no_list_are_named(cls, classes):
    X, y = blobs()
    if classes is None:
        classes = pd.DataFrame({"a": [0, 1]})
    with pytest.raises(ValueError, match="classes must"):
        cls(classes=classes).fit(X, np.array(["a", "b"])[y])


def test_labels_that_a_vote_has_numbered_are_explained():
    X, y = blobs()
    labels = np.array(["no", "yes"])[y]
    for classes, numbered in ((["no", "yes"], True), (range(2), False)):
        model = DPLogisticRegression(2.0, 1e-5, classes=classes)
        vote = VotingClassifier([("a", model), ("b", clone(model))], voting="soft")
        if numbered:
            with pytest.raises(TypeError, match=r"VotingClassifier .* must be range\(K\)"):
                vote.fit(X, labels)
        else:
            assert vote.fit(X, labels).score(X, labels) > 0.9


@for_each("dtype", ["boolean", "Int64", "int64[pyarrow]", "string", "category"])
def test_labels_come_back_as_they_were(dtype):
    X, y = blobs()
    given = {"boolean": [False, True], "string": ["no", "yes"]}.get(dtype, [0, 1])
    labels = pd.Series([given[k] for k in y], dtype=dtype)
    model = DPLogisticRegression().fit(X, labels)
    assert model.classes_.tolist() == given
    assert [type(v) for v in model.classes_.tolist()] == [type(v) for v in given]
    assert set(model.predict(X).tolist()) == set(given)


def test_labels_that_were_read_are_named():
    X, y = blobs()
    assert LABELS_READ in DPLogisticRegression().fit(X, y).privacy_.notes
    with pytest.raises(ValueError, match="y must hold labels of classes only"):
        DPLogisticRegression(classes=[0, 2]).fit(X, y)
    with pytest.raises(ValueError, match="two classes at least"):
        DPLogisticRegression().fit(X, np.zeros(len(X)))
    # A declared label that no record has stays a class.
    only = DPLogisticRegression(classes=[0, 1]).fit(X, np.zeros(len(X), dtype=int))
    assert only.predict_proba(X).shape == (len(X), 2)


def test_a_fit_without_a_seed_has_fresh_noise():
    X, y = blobs()
    first, second = (DPLogisticRegression().fit(X, y) for _ in range(2))
    assert first.privacy_.noise == "os"
    assert not np.array_equal(first.coef_, second.coef_)


def test_penalties_depend_on_the_public_number_of_records():
    X, y = blobs()
    how = {"neighbours": "add_remove", "public_size": 500}
    model = DPLogisticRegression(C=2.0, **how).fit(X, y)
    assert model.result_.parameters["l2"] == 1.0 / (2.0 * 500)
    assert model.privacy_.neighbours == "add_remove"


def test_what_private_estimators_do_not_have_says_why():
    X, y = blobs()
    for name, kind in (("class_weight", DPMLPClassifier), ("warm_start", DPLogisticRegression)):
        with pytest.raises(TypeError, match=f"no parameter '{name}'"):
            kind(**{name: None})
    with pytest.raises(ValueError, match="max_weight must be given with sample_weight"):
        DPLogisticRegression().fit(X, y, sample_weight=np.ones(len(y)))
    with pytest.raises(TypeError, match="no argument 'exposure': it takes X, y, silos, person"):
        DPLogisticRegression().fit(X, y, exposure=np.ones(len(y)))
    with pytest.raises(TypeError, match="no argument 'weights': it takes X, y, silos"):
        DPLogisticRegression().fit(X, y, weights=np.ones(len(y)))
    with pytest.raises(ValueError, match=r"solver_params must hold .* got 'clip'"):
        DPLogisticRegression(solver_params={"clip": 1.0}).fit(X, y)


@for_each(
    ("cls", "parameters", "said"),
    [
        (DPLogisticRegression, {"C": 1e-60}, "C must be at least 1e-52 for 100 records, got 1e-60"),
        (DPLinearSVC, {"C": 1e-60}, "C must be at least"),
        (DPRidge, {"alpha": 1e60}, "alpha must be between 0 and 1e[+]52, got 1e[+]60"),
        (DPLasso, {"alpha": 1e51}, "alpha must be between 0 and 1e[+]50"),
        (DPMLPClassifier, {"alpha": 1e60}, "alpha must be between 0 and 1e[+]52"),
        (DPMLPClassifier, {"hidden_layer_sizes": 100}, "hidden_layer_sizes must be a sequence of"),
        (DPMLPClassifier, {"hidden_layer_sizes": (0,)}, "hidden_layer_sizes must be at least 1"),
        (DPRidge, {"solver": "lbfgs"}, "solver must be one of auto, gradient_descent"),
        (DPRidge, {"solver_params": 3}, "solver_params must be a mapping of arguments, got int"),
        (DPRidge, {"n_jobs": 0}, "n_jobs must be at least 1"),
        (DPRidge, {"fit_intercept": "no"}, "fit_intercept must be True or False, got 'no'"),
        (DPRidge, {"random_state": "a"}, "random_state must be None, a RandomState or an integer"),
    ],
)
def test_a_wrong_parameter_has_the_name_that_it_was_given_by(cls, parameters, said):
    X, y = blobs(100)
    with pytest.raises((TypeError, ValueError), match=f"^{said}"):
        cls(**parameters).fit(X, y)


@pytest.mark.filterwarnings("ignore:no target_bound was stated")
@for_each("cls", [*CLASSIFIERS, *REGRESSORS])
def test_certificates_survive_copies(cls):
    X, y = blobs()
    pipe = make_pipeline(FunctionTransformer(), cls()).fit(X, y)
    file = io.BytesIO()
    joblib.dump(pipe, file)
    file.seek(0)
    copies = (
        pickle.loads(pickle.dumps(pipe)),
        joblib.load(file),
        copy.deepcopy(pipe),
        clone(FrozenEstimator(pipe)).estimator,
    )
    for found in copies:
        assert found[-1].privacy_ == pipe[-1].privacy_
        assert found[-1].result_ == pipe[-1].result_
        np.testing.assert_array_equal(found.predict(X), pipe.predict(X))
    assert not hasattr(clone(pipe)[-1], "privacy_")


@for_each("library", LIBRARIES)
def test_frames_keep_their_names(library):
    X, y = blobs()
    names = ["age", "height", "weight", "pulse"]
    X = {"pandas": pd, "polars": pl}[library].DataFrame(dict(zip(names, X.T, strict=True)))
    model = DPLogisticRegression().fit(X, y)
    assert model.feature_names_in_.tolist() == names
    assert model.result_.feature_names == tuple(names)
    assert model.score(X, y) > 0.9
    other = X[["height", "age", "weight", "pulse"]]
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(other)


def frame(**columns):
    return pd.DataFrame({"a": [0.5, -0.5] * 30, "b": [0.1] * 60} | columns)


WRONG_RECORDS = {
    "a masked array": (
        np.ma.array(np.ones((60, 2)), mask=False),
        None,
        "X must be .* without mask",
    ),
    "masked labels": (None, np.ma.array([0, 1] * 30), "y must be .* without mask"),
    "a dict": ({"a": np.ones(60)}, None, "X must be an array.*pandas.DataFrame"),
    "dates": (np.zeros((60, 1), "M8[D]"), None, "X must be real numbers, got dates"),
    "durations": ([[np.timedelta64(1, "s")]] * 60, None, "X must be real numbers, got dates"),
    "records": (np.zeros(60, "f8,f8"), None, "X must be real numbers, got text or records"),
    "text": (np.full((60, 1), "1"), None, "X must be real numbers, got text"),
    "a column of dates": (frame(a=pd.Timestamp("2020-01-01")), None, "column 'a' of X must be"),
    "dates alone": (frame(a=pd.Timestamp("2020-01-01"))[["a"]], None, "column 'a' of X must be"),
    "dates of polars": (pl.DataFrame({"c": pd.date_range("2020", periods=60)}), None, "column 'c'"),
    "a column of text": (frame(b="x"), None, "column 'b' of X must be numbers"),
    "a missing value": (
        frame(b=pd.array([None] + [1] * 59, "Int64")),
        None,
        "column 'b' of X must",
    ),
    "a name twice": (frame().set_axis(["a", "a"], axis=1), None, "names, got 'a' twice"),
    "y in another order": (frame(), pd.Series([0, 1] * 30)[::-1], "y must have the index of X"),
    "None in y": (None, ["no", None] * 30, "y must be .* got 30 missing values"),
    "NA in y": (None, pd.Series(["no", None] * 30, dtype="string"), "y must be .* 30 missing"),
    "NaN among text": (None, np.array(["no", np.nan] * 30, object), "y must be .* 30 missing"),
    "text and numbers": (None, ["no", 1] * 30, "y must be .* got both"),
    "dates in y": (
        None,
        (np.arange(60) % 2).astype("M8[D]"),
        "y must be all real numbers or all strings",
    ),
    "huge numbers": (None, [2**70, 0] * 30, "y must fit 64 bits"),
}


@for_each(("X", "y", "message"), WRONG_RECORDS.values(), ids=WRONG_RECORDS)
def test_records_of_a_wrong_type_are_named(X, y, message):
    X = np.ones((60, 2)) if X is None else X
    y = [0, 1] * 30 if y is None else y
    with pytest.raises((TypeError, ValueError), match=message):
        DPLogisticRegression(2.0, 1e-5).fit(X, y)
    with pytest.raises((TypeError, ValueError), match=message):
        dpk.SiloData.split(X, y, 1, row_bound=1.0)


@for_each("make", [list, pd.DataFrame, np.array], ids=["list", "frame", "array"])
@for_each("text", ["1_0", "\u0663", "\uff11", "x", ""])
def test_text_is_never_another_number(make, text):
    X, y = blobs(8)
    with pytest.raises(
        TypeError, match=r"column 3 of X must be numbers, got text in row 0: encode"
    ):
        DPLogisticRegression().fit(make(with_entry(X, text)), y)
    DPLogisticRegression().fit(make(with_entry(X, " 1.5 ")), y)


@for_each("fill", [0.0, np.nan, 1.0])
def test_sparse_frames_are_their_values(fill):
    X, y = blobs()
    X = pd.DataFrame(X, columns=list("abcd"))
    how = {"row_bound": 1.5, "random_state": 0}
    expected = DPLogisticRegression(**how).fit(X, y).coef_
    found = DPLogisticRegression(**how).fit(X.astype(pd.SparseDtype(float, fill)), y).coef_
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@for_each("routing", [False, True])
def test_silos_are_metadata(routing):
    X, y = blobs()
    silos = np.repeat(["a", "b", "c"], 200)
    model = DPLogisticRegression(trust="silo", solver="federated_gd")
    with sklearn.config_context(enable_metadata_routing=routing):
        if routing:
            model.set_fit_request(silos=True)
            pipe = Pipeline([("model", model)]).fit(X, y, silos=silos)
        else:
            pipe = Pipeline([("model", model)]).fit(X, y, model__silos=silos)
        given = {"silos": silos} if routing else {"model__silos": silos}
        scores = cross_val_score(pipe, X, y, cv=2, error_score="raise", params=given)
    assert pipe[-1].privacy_.declared["sizes"] == (200, 200, 200)
    assert pipe[-1].privacy_.trust == "silo"
    assert len(scores) == 2


def test_search_publishes_the_best_of_a_random_number_of_fits():
    X, y = blobs()
    search = PrivateSearchCV(
        DPLogisticRegression(3.0, 1e-5, random_state=0),
        {"C": [1e-3, 1.0, 1e3], "rounds": [5, 50], "solver": ["auto", "federated_gd"]},
        mean_runs=5,
    ).fit(X, y)
    assert search.privacy_.selection is not None
    assert 2.0 < search.privacy_.epsilon(1e-5) <= 3.0
    assert LABELS_READ in search.privacy_.notes
    assert search.best_params_.keys() == {"C", "rounds", "solver"}
    best = search.best_estimator_
    assert best.result_.parameters["rounds"] == search.best_params_["rounds"]
    assert best.result_.parameters["l2"] == 1.0 / (search.best_params_["C"] * len(y))
    assert best.get_params()["solver_params"] == {"rounds": search.best_params_["rounds"]}
    assert search.score(X, y) > 0.9
    np.testing.assert_array_equal(search.predict(X), best.predict(X))
    assert search.predict_proba(X).shape == (len(y), 2)
    assert abs(search.best_score_ - 1.0) < 0.3


def test_search_of_a_perceptron_and_of_a_regression():
    X, y = blobs()
    layers = {"hidden_layer_sizes": [(4,), (8,)], "activation": ["tanh"]}
    search = PrivateSearchCV(DPMLPClassifier(3.0, 1e-5), layers, mean_runs=2, eta=0.0).fit(X, y)
    assert search.best_estimator_.activation == "tanh"
    assert search.best_estimator_.hidden_layer_sizes in [(4,), (8,)]
    X, y = targets()
    ridge = DPRidge(9.0, 1e-5, target_bound=2.0, row_bound=2.0)
    search = PrivateSearchCV(ridge, {"alpha": [0.1, 1.0]}, mean_runs=2, eta=0.0).fit(X, y)
    error = np.mean((search.predict(X) - y) ** 2)
    assert search.best_score_ == pytest.approx(-error, abs=0.2)
    with pytest.raises(ValueError, match="target_bound must be given"):
        PrivateSearchCV(DPRidge(), {"alpha": [0.1, 1.0]}).fit(X, y)
    with pytest.raises(ValueError, match="distributions must not hold 'epsilon'"):
        PrivateSearchCV(ridge, {"epsilon": [0.1, 1.0]}).fit(X, y)
    with pytest.raises(ValueError, match="distributions has the unknown key 'Alpha'; did you mean"):
        PrivateSearchCV(ridge, {"Alpha": [0.1, 1.0]}).fit(X, y)
    with pytest.raises(TypeError, match="no score of means, got DPPoissonRegressor"):
        PrivateSearchCV(DPPoissonRegressor(), {"alpha": [0.1, 1.0]}).fit(X, y)
    with pytest.raises(TypeError, match="estimator must be one of"):
        PrivateSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}).fit(X, y)


ADULT = (
    *("age", "workclass", "fnlwgt", "education", "education_num", "marital", "occupation"),
    *("relationship", "race", "sex", "capital_gain", "capital_loss", "hours", "country", "income"),
)
ADULT_RANGES = {"age": (17, 90), "education_num": (1, 16), "hours": (1, 99)}


def adult(name, skip=0):
    path = Path(os.environ["DPKERN_DATA"]) / "adult" / f"{name}.xz"
    with lzma.open(path, "rt") as file:
        return pd.read_csv(file, names=ADULT, sep=r",\s*", engine="python", skiprows=skip)


def in_range(X):
    lo, hi = np.array(list(ADULT_RANGES.values()), dtype=float).T
    return np.clip((2.0 * np.asarray(X) - lo - hi) / (hi - lo), -1.0, 1.0)


@pytest.mark.skipif("DPKERN_DATA" not in os.environ, reason="needs DPKERN_DATA")
def test_pipeline_on_the_raw_adult_frame():
    train, test = adult("adult.data"), adult("adult.test", skip=1)
    # All values that the form has, declared by hand in real use.
    texts = ["workclass", "education", "marital", "occupation", "relationship", "race", "sex"]
    both = pd.concat([train, test])
    categories = [sorted(both[name].unique()) for name in texts]
    y, y_test = (frame["income"].str.startswith(">50K").to_numpy() for frame in (train, test))
    frames = {"pandas": (train, test)}
    if "polars" in LIBRARIES:
        frames["polars"] = pl.from_pandas(train), pl.from_pandas(test)
    one_hot = OneHotEncoder(categories=categories, handle_unknown="ignore", sparse_output=False)
    log = FunctionTransformer(lambda X: np.log1p(np.asarray(X, dtype=float)) / 12.0)
    columns = ColumnTransformer(
        [
            ("numbers", FunctionTransformer(in_range), list(ADULT_RANGES)),
            ("logarithms", log, ["capital_gain", "capital_loss"]),
            ("texts", one_hot, texts),
        ]
    )
    # Numbers in [-1, 1], and a 1 for every text.
    bound = np.sqrt(len(ADULT_RANGES) + 2 + len(texts) + 1)
    private = make_pipeline(columns, DPLogisticRegression(1.0, row_bound=bound, classes=[0, 1]))
    plain = make_pipeline(columns, LogisticRegression(max_iter=2000))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Frames that scikit-learn's parts warn of.
        best = plain.fit(train, y).score(test, y_test)
        for library, (train, test) in frames.items():
            score = private.fit(train, y).score(test, y_test)
            assert private[-1].privacy_.epsilon(1e-6) <= 1.0, library
            assert score > best - 0.015, library


def test_a_search_is_one_charge(tmp_path):
    X, y = blobs()
    accountant = dpk.Accountant(tmp_path / "study.json", epsilon=3.0, delta=1e-5)
    model = DPLogisticRegression(2.0, 1e-5, accountant=accountant)
    search = PrivateSearchCV(model, {"C": [0.1, 10.0]}, mean_runs=3).fit(X, y)
    assert [c.selection for c in accountant.certificates] == [search.result_.privacy.selection]
    assert accountant.spent == pytest.approx(2.0, rel=5e-2)  # a selection has no mu of its own


def test_persons_are_protected_where_they_are_named(tmp_path):
    X, y = blobs()
    person = np.arange(len(y)) // 3
    accountant = dpk.Accountant(
        tmp_path / "study.json", epsilon=3.0, delta=1e-5, unit="one person with at most 2 records"
    )
    how = {"max_records": 2, "classes": [0, 1], "accountant": accountant}
    model = DPLogisticRegression(2.0, 1e-5, **how).fit(X, y, person=person)
    assert model.privacy_.unit == "one person with at most 2 records"
    assert model.privacy_.epsilon(1e-5) <= 2.0
    assert model.privacy_.declared["sizes"] == (400,)
    assert accountant.spent == pytest.approx(2.0, rel=1e-6)
    with pytest.raises(ValueError, match="max_records"):
        DPLogisticRegression().fit(X, y, person=person)
    # A run that protects one record spends twice its mu for a person with two.
    DPLogisticRegression(0.5, 1e-5, classes=[0, 1], accountant=accountant).fit(X, y)
    one = dpk.Budget(epsilon=0.5, delta=1e-5).mu
    total = np.hypot(dpk.Budget(epsilon=2.0, delta=1e-5).mu, 2.0 * one)
    assert accountant.spent == pytest.approx(dpk.privacy.gdp_epsilon(total, 1e-5), rel=1e-6)


def test_a_gap_is_named_with_its_column():
    X, y = blobs()
    X[3, 1] = np.nan
    model = DPLogisticRegression(epsilon=1.0, feature_range=(-9.0, 9.0))
    with pytest.raises(ValueError, match="Input X contains NaN in column 1: fill gaps by public"):
        model.fit(X, y)
