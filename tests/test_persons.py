"""People with several records: which rows are used, and guarantees for a person."""

import itertools
import math
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from cases import for_each
from makers import spy_on, square
from scipy.sparse import csr_array

import dpkern as dpk
import dpkern.io
from dpkern.cli import main
from dpkern.privacy.certificate.persons import budget_of_a_record, unit_of
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.solvers import SOLVERS

N, PEOPLE, K = 300, 80, 4
BUDGET = dpk.Budget(epsilon=1.0, delta=1e-5)
GAUSSIAN = [
    (name, trust)
    for name, solver in SOLVERS.items()
    for trust in solver.declaration.trusts
    if solver.declaration.gaussian and trust != "shuffle" and (name, trust) != ("admm", "silo")
    if not solver.declaration.estimates  # which take no persons
]


def records(seed=0, n=N):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, np.where(X[:, 0] + rng.normal(size=n) > 0, 1, 0), rng.integers(0, PEOPLE, n)


def held(m=3, k=K, **options):
    X, y, ids = records()
    how = {"row_bound": 2.0, "intercept": True, "seed": 0, **options}
    return dpk.SiloData.split(X, y, m, person=ids, max_records=k, **how)


def first_rows(ids, k):
    """The rows that are used, by the plainest loop."""
    seen, rows = {}, []
    for i, person in enumerate(ids.tolist()):
        seen[person] = seen.get(person, 0) + 1
        if seen[person] <= k:
            rows.append(i)
    return rows


# ------------------------------------------------------------------------------ rows


def as_sets(data):
    return sorted(map(tuple, np.column_stack([data.X, data.y]).tolist()))


@for_each("k", [1, 2, 4, 100])
@for_each("how", ["even", "random", "two_groups", "groups", "silos", "given"])
def test_the_first_rows_of_a_person_in_the_given_order_are_used(how, k):
    X, y, ids = records()
    options = {"person": ids, "max_records": k, "row_bound": 2.0}
    if how == "groups":
        data = dpk.SiloData.from_groups(X, y, np.random.default_rng(1).integers(0, 3, N), **options)
    elif how == "silos":
        options["person"] = [ids[:100], ids[100:]]
        data = dpk.SiloData.from_silos([(X[:100], y[:100]), (X[100:], y[100:])], **options)
    elif how == "given":
        data = dpk.SiloData(X, y, [0, 200, N], **options)
    else:
        more = {"ratio": 2.0} if how == "two_groups" else {}
        data = dpk.SiloData.split(X, y, 3, how=how, seed=3, **more, **options)
    rows = first_rows(ids, k)
    signs = np.where(y == 1, 1.0, -1.0)
    assert as_sets(data) == sorted(map(tuple, np.column_stack([X, signs])[rows].tolist()))
    assert data.n == len(rows)
    assert data.persons.max_records == k


def test_which_rows_are_used_depends_on_ids_and_order_alone():
    X, y, ids = records()
    other = np.random.default_rng(9)
    other_X, other_y = other.normal(size=X.shape), other.integers(0, 2, N)
    one, two = (
        dpk.SiloData.split(
            np.column_stack([a, np.arange(N)]), b, 3, person=ids, max_records=2, seed=0, row_bound=2
        )
        for a, b in ((X, y), (other_X, other_y))
    )
    np.testing.assert_array_equal(one.X[:, 3], two.X[:, 3])
    np.testing.assert_array_equal(one.offsets, two.offsets)
    np.testing.assert_array_equal(one.persons.offsets, two.persons.offsets)


@for_each("sparse", [False, True])
@for_each("how", ["even", "random"])
def test_persons_stay_whole_when_silos_are_split_and_are_segments_of_rows(how, sparse):
    X, y, ids = records()
    X = np.column_stack([X, ids, np.arange(N)])
    given = csr_array(X) if sparse else X
    text = np.char.add("p", ids.astype(str))
    data = dpk.SiloData.split(given, y, 5, how=how, seed=2, person=text, max_records=3)
    found = data.X.toarray() if sparse else data.X
    bounds = data.persons.offsets
    assert set(data.offsets) <= set(bounds)
    whose = [set(found[a:b, 3]) for a, b in itertools.pairwise(bounds)]
    assert all(len(ids) == 1 for ids in whose)
    assert len(set.union(*whose)) == len(whose)
    for a, b in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        sizes = np.diff(bounds[(a <= bounds) & (bounds <= b)])
        assert np.all(np.diff(sizes) >= 0)
    np.testing.assert_allclose(
        data.row_norms, np.linalg.norm(found, axis=1), rtol=1e-12
    )  # norms are those of the rows in their new order


def test_silos_may_divide_a_person_and_then_no_sums_of_persons_are_offered():
    X, y, ids = records()
    data = dpk.SiloData.from_groups(X, y, np.arange(N) % 3, person=ids, max_records=K, row_bound=2)
    assert data.persons.offsets is None
    assert data.persons.typical is None
    result = dpk.solve("gradient_descent", data, budget=BUDGET, trust="silo", rounds=3, rng=0)
    assert result.privacy.unit == unit_of(K)
    assert result.parameters["person_clip"] is None
    with pytest.raises(ValueError, match="person_clip must be None or 'auto' but for"):
        dpk.solve("gradient_descent", data, budget=BUDGET, person_clip=2.0, rounds=3)


def test_ids_are_not_kept():
    X, y, _ = records()
    names = np.array([f"Secret Name {i % PEOPLE}" for i in range(N)])
    data = dpk.SiloData.split(X, y, 3, person=names, max_records=2, row_bound=2.0, seed=0)
    result = dpk.solve("gradient_descent", data, budget=BUDGET, rounds=2, rng=0)
    for thing in (data, result):
        assert b"Secret" not in pickle.dumps(thing)
        assert "Secret" not in repr(thing)
    copy = pickle.loads(pickle.dumps(data))
    np.testing.assert_array_equal(copy.persons.offsets, data.persons.offsets)


@for_each(
    ("change", "message"),
    [
        ({"max_records": None}, "max_records must be given with person"),
        ({"person": None}, "max_records must be left out without person"),
        ({"max_records": 0}, "max_records must be"),
        ({"max_records": 1.5}, "max_records must be"),
        ({"person": np.arange(N - 1)}, "person must have 300 entries, got 299"),
        ({"person": np.full(N, math.nan)}, "person must be finite"),
        ({"how": "by_label"}, "how must not read labels"),
        ({"how": "mixed", "share": 0.5}, "how must not read labels"),
        ({"how": "dirichlet", "concentration": 1.0}, "how must not read labels"),
        ({"min_size": 30}, "m must be at most persons / min_size"),
    ],
)
def test_errors_name_the_argument(change, message):
    X, y, ids = records()
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        dpk.SiloData.split(X, y, **{"m": 3, "person": ids, "max_records": 2, **change})
    assert "Secret" not in str(caught.value)


def test_ids_of_silos_are_one_sequence_per_silo_of_one_kind():
    X, y, ids = records()
    silos = [(X[:100], y[:100]), (X[100:], y[100:])]
    with pytest.raises(ValueError, match="ids of the rows of each of 2 silos, got 1"):
        dpk.SiloData.from_silos(silos, person=[ids], max_records=2)
    with pytest.raises(TypeError, match="person must be strings in every silo"):
        dpk.SiloData.from_silos(silos, person=[ids[:100].astype(str), ids[100:]], max_records=2)


# -------------------------------------------------------------------------- group bound


@for_each(("name", "trust"), GAUSSIAN)
def test_a_run_keeps_the_budget_for_a_person_with_k_records(name, trust):
    how = {"loss": "squared"} if name == "ridge" else {}
    if "rounds" in SOLVERS[name].declaration.options:
        how["rounds"] = 2
    result = dpk.solve(
        name, held(), budget=BUDGET, trust=trust, rng=0, clip=0.5, person_clip=None, **how
    )
    privacy = result.privacy
    assert privacy.unit == "one person with at most 4 records"
    assert BUDGET.mu * (1 - 1e-9) < privacy.mu <= BUDGET.mu
    assert privacy.epsilon(1e-5) <= 1.0
    # The ledger is for one record, of which k together have the budget.
    alone = dpk.solve(
        name, _same_rows(),
        budget=dpk.Budget(mu=budget_of_a_record(BUDGET, K).mu), trust=trust, rng=0, clip=0.5, **how,
    )  # fmt: skip
    assert alone.privacy.releases == privacy.releases
    assert Fraction(privacy.mu) >= K * Fraction(alone.privacy.mu)
    np.testing.assert_array_equal(alone.w, result.w)
    assert any("one person's" in note for note in privacy.notes)
    with pytest.raises(ValueError, match="unit must be 'one record'"):
        privacy.group(2)


def _same_rows():
    data = held()
    plain = {"row_bound": 2.0, "intercept": True, "classes": [0, 1]}
    y = np.where(data.y > 0, 1, 0)
    return dpk.SiloData(np.array(data.X), y, data.offsets, **plain)


def test_one_record_of_a_person_costs_no_more_than_a_record():
    how = {"budget": BUDGET, "rounds": 3, "rng": 0}
    privacy = dpk.solve("gradient_descent", held(k=1), **how).privacy
    assert privacy.unit == "one person with at most 1 record"
    assert privacy.releases == dpk.solve("gradient_descent", held(k=1), **how).privacy.releases
    assert privacy.mu > BUDGET.mu * (1 - 1e-9)


def test_added_persons_are_groups_too():
    how = {"budget": BUDGET, "rounds": 3, "neighbours": "add_remove", "public_size": 240}
    privacy = dpk.solve("gradient_descent", held(), **how).privacy
    assert privacy.unit == unit_of(K)
    assert privacy.mu <= BUDGET.mu
    assert any("presence of all" in note for note in privacy.notes)
    assert not any("taken as public: which records are" in note for note in privacy.notes)


@for_each(
    ("name", "how", "message"),
    [
        ("objective_perturbation", {}, "data must be without person in objective_perturbation"),
        ("minibatch_sgd", {"trust": "shuffle"}, "trust must not be 'shuffle' for data with person"),
        ("gradient_descent", {"calibration": "paper"}, "calibration must not be 'paper'"),
        (
            "minibatch_sgd",
            {"sampling": "without_replacement", "batch_size": 10},
            "sampling must not be 'without_replacement'",
        ),
    ],
)
def test_what_has_no_law_for_groups_is_refused(name, how, message):
    with pytest.raises(ValueError, match=message):
        dpk.solve(name, held(), budget=BUDGET, **how)


def test_certificates_of_persons_compose_with_those_of_the_same_unit_only():
    how = {"budget": BUDGET, "rounds": 2, "rng": 0}
    one, two = (dpk.solve("gradient_descent", held(k=k), **how).privacy for k in (2, 4))
    both = dpk.privacy.compose_sequential(two, two)
    assert both.unit == unit_of(4)
    assert both.mu == pytest.approx(math.sqrt(2) * BUDGET.mu)
    with pytest.raises(ValueError, match="unit must be one for all certificates"):
        dpk.privacy.compose_sequential(one, two)


def test_a_selection_is_for_persons_whose_records_train_and_score():
    chosen = dpk.select(
        {"clip": [0.5, 1.0]}, held(), solver="gradient_descent", budget=BUDGET, rounds=2,
        mean_runs=2.0, rng=0,
    )  # fmt: skip
    privacy = chosen.privacy
    assert privacy.unit == unit_of(K)
    assert privacy.epsilon(1e-5) <= 1.0
    law = privacy.selection
    *gradients, score = privacy.releases
    for releases in (gradients, [score]):
        squared = sum(r.mu_squared()[0] for r in releases)
        assert K * math.sqrt(squared) == pytest.approx(law.mu, rel=1e-6)
        assert K**2 * squared <= Fraction(law.mu) ** 2


def test_ranges_are_for_persons_too():
    found = dpk.private_range(held(), bounds=(-50.0, 50.0), budget=BUDGET, rng=0).privacy
    assert found.unit == unit_of(K)
    assert found.mu <= BUDGET.mu
    release = found.releases[0]
    assert K * release.sensitivity / release.std == pytest.approx(BUDGET.mu)
    run = dpk.solve("gradient_descent", held(), budget=BUDGET, rounds=2, rng=0).privacy
    assert dpk.privacy.compose_sequential(found, run).unit == unit_of(K)


# ------------------------------------------------------------------- clip of a person's sum


@for_each("name", ["gradient_descent", "federated_gd", "minibatch_sgd"])
@for_each("trust", ["central", "silo"])
def test_a_clipped_sum_has_noise_for_its_clip(name, trust):
    data, how = held(), {"budget": BUDGET, "trust": trust, "clip": 0.5, "rounds": 5, "rng": 0}
    result = dpk.solve(name, data, person_clip=1.5, **how)
    privacy = result.privacy
    (release,) = privacy.releases
    assert set(np.ravel(release.sensitivity)) == {2 * 1.5 * 0.5}
    assert release.what == "sum of clipped gradients, clipped for each person"
    assert privacy.unit == unit_of(K)
    assert privacy.bound == "exact"
    assert BUDGET.mu * (1 - 1e-9) < privacy.mu <= BUDGET.mu
    assert (privacy.declared["person_clip"], privacy.declared["max_records"]) == (1.5, K)
    group = dpk.solve(name, data, person_clip=None, **how).privacy
    np.testing.assert_allclose(
        np.array(release.std) / np.array(group.releases[0].std), 1.5 / K, rtol=1e-9
    )
    with pytest.raises(ValueError, match="unit must be 'one record'"):
        privacy.group(2)


def test_the_default_is_the_median_number_of_records_where_that_is_less():
    X, y, _ = records(n=60)
    ids = np.repeat(np.arange(20), [1] * 5 + [2] * 5 + [3] * 5 + [6] * 5)
    how = {"budget": BUDGET, "rounds": 2, "rng": 0}
    for k, expected in ((1, None), (2, None), (3, None), (4, 3.0), (6, 3.0), (100, 3.0)):
        data = dpk.SiloData.split(X, y, 2, person=ids, max_records=k, row_bound=2.0, seed=0)
        assert data.persons.typical == min(3, k)
        assert dpk.solve("gradient_descent", data, **how).parameters["person_clip"] == expected
    # Elsewhere the bound for groups is taken.
    for name, more in (
        ("local_newton", {}),
        ("federated_gd", {"local_steps": 2}),
        ("minibatch_sgd", {"sampling": "one_pass", "batch_size": 5}),
        ("minibatch_sgd", {"participation": 1}),
        ("minibatch_sgd", {"model": dpk.MLP(hidden=(2,)), "clip": 1.0, "step_size": 0.1}),
        ("gradient_descent", {"neighbours": "add_remove", "public_size": 60}),
    ):
        result = dpk.solve(name, data, **how, **more)
        assert result.parameters["person_clip"] is None, name
        assert result.privacy.mu <= BUDGET.mu
        with pytest.raises(ValueError, match="person_clip must be None or 'auto' but for"):
            dpk.solve(name, data, person_clip=2.0, **how, **more)


def test_person_clip_is_checked():
    X, y, _ = records()
    plain = dpk.SiloData.split(X, y, 2, row_bound=2.0, seed=0)
    with pytest.raises(ValueError, match="person_clip must be left out for data without person"):
        dpk.solve("gradient_descent", plain, budget=BUDGET, person_clip=2.0)
    with pytest.raises(ValueError, match="person_clip must be at most max_records, 4"):
        dpk.solve("gradient_descent", held(), budget=BUDGET, person_clip=4.5)


@for_each("solver", ["gradient_descent", "federated_gd", "minibatch_sgd"])
@for_each("trust", ["central", "silo"])
def test_what_a_run_adds_noise_to_moves_by_the_charged_sensitivity_at_most(
    monkeypatch, solver, trust
):
    """The sums that a run gives to its mechanism, for data that differ in one person's values."""
    seen = spy_on(monkeypatch, GaussianSum)
    data = held(k=10)
    sizes = np.diff(data.persons.offsets)
    i = int(np.argmax(sizes))
    own = slice(*data.persons.offsets[i : i + 2])
    found = []
    for scale in (1e300, -1e300, 1.0, -5e-324, 1e-170):
        X, y = np.array(data.X), np.array(data.y)
        X[own] = scale
        y[own] = np.sign(scale)
        other = data.part(np.arange(data.n), data.offsets)
        other._set(X=X, y=y, persons=data.persons, row_norms=None)
        seen.clear()
        # At a public model that is the same for all: the first round's.
        how = {"budget": BUDGET, "clip": 0.5, "person_clip": 2.0, "rounds": 1, "rng": 0}
        result = dpk.solve(solver, other, trust=trust, weights="uniform", **how)
        mechanism, total, _ = seen[0]
        charged = np.ravel(result.privacy.releases[0].sensitivity)[-1]
        found.append((charged, total.reshape(len(mechanism.grid), -1)))
    farthest = 0.0
    for charged, one in found:
        for _, two in found:
            for a, b in zip(one, two, strict=True):
                moved = square(a, b)
                assert moved <= Fraction(charged) ** 2
                farthest = max(farthest, math.sqrt(moved) / charged)
    assert farthest > 0.4


def test_many_runs_have_the_bits_of_each_by_itself():
    how = {"clip": 0.5, "rounds": 4, "person_clip": 2.0}
    many = dpk.solve_many("gradient_descent", held(), budgets=BUDGET, draws=2, rng=[3, 4], **how)
    for seed, result in zip((3, 4), many, strict=True):
        alone = dpk.solve("gradient_descent", held(), budget=BUDGET, rng=seed, **how)
        np.testing.assert_array_equal(alone.w, result.w)
    assert many.privacy.unit == unit_of(K)


def test_result_files_keep_the_person(tmp_path):
    result = dpk.solve("gradient_descent", held(), budget=BUDGET, rounds=2, rng=0)
    result.save(tmp_path / "model.npz")
    assert dpk.load(tmp_path / "model.npz").privacy == result.privacy


# ------------------------------------------------------------------------- command line


def visits(path):
    X, y, ids = records()
    lines = ["patient,age,dose,weight,ill"]
    lines += [
        f"p{i},{a:.3f},{b:.3f},{c:.3f},{'yes' if sick else 'no'}"
        for i, (a, b, c), sick in zip(ids, X, y, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")
    return ids


def test_the_column_of_ids_is_no_feature_on_the_command_line(tmp_path, capsys):
    path, model = tmp_path / "visits.csv", tmp_path / "model.npz"
    ids = visits(path)
    budget = ["--epsilon", "1", "--delta", "1e-5", "--rounds", "3"]
    people = ["--person", "patient", "--max-records", "3"]
    main(["fit", str(path), *budget, *people, "--target", "ill", "--out", str(model)])
    shown = capsys.readouterr().out
    assert f"{len(first_rows(ids, 3))} training records, 3 features" in shown
    assert "at most 3 records of a person" in shown
    assert "one person with at most 3 records" in shown
    assert dpk.load(model).privacy.unit == unit_of(3)
    assert dpk.load(model).feature_names == ("age", "dose", "weight")
    main(["predict", str(model), str(path), "--person", "patient", "--target", "ill"])
    assert "on 300 labelled records" in capsys.readouterr().err


@for_each(
    ("options", "message"),
    [
        (["--person", "patient"], "--max-records must be given with person"),
        (["--person", "nobody", "--max-records", "2"], "person must be a column, got 'nobody'"),
        (["--person", "ill", "--max-records", "2"], "target and person must be two columns"),
        (["--person", "0", "--max-records", "0"], "argument --max-records: must be at least 1"),
    ],
)
def test_errors_of_the_command_line_name_the_option(tmp_path, capsys, options, message):
    visits(tmp_path / "visits.csv")
    budget = ["--epsilon", "1", "--delta", "1e-5", "--target", "ill"]
    assert main(["fit", str(tmp_path / "visits.csv"), *budget, *options]) != 0
    assert message in capsys.readouterr().err


@for_each("kind", [object, np.int64, np.uint64, str])
def test_long_ids_are_of_different_people(kind):
    ids = np.array([1234567890123456000 + i for i in range(40)], dtype=kind)
    options = {"row_bound": 1.0, "classes": [0, 1]}
    X, y = np.ones((40, 1)), np.arange(40) % 2
    data = dpk.SiloData.split(X, y, 1, person=ids, max_records=1, **options)
    assert data.n == 40
    assert dpk.SiloData.from_groups(X, y, ids, **options).m == 40


@for_each("kind", [np.float32, np.float64, list])
def test_floats_that_join_ids_are_refused(kind):
    first = 2**24 if kind is np.float32 else 2**53
    ids = [first + 1.0, 1.5] if kind is list else np.array([first + 1, 2], dtype=kind)
    X, y = np.ones((2, 1)), [0, 1]
    with pytest.raises(ValueError, match=r"person must be text or integers .* got 1 float of"):
        dpk.SiloData.split(X, y, 1, person=ids, max_records=1)
    with pytest.raises(ValueError, match=r"groups must be text or integers .* got 1 float of"):
        dpk.SiloData.from_groups(X, y, ids)
    who = dpk.data.Column("who", "person")
    schema = dpk.Schema([dpk.data.Column("a", "number", lo=0, hi=1), who])
    with pytest.raises(ValueError, match="column 'who' must name the person by text or integers"):
        schema.persons({"a": [0, 1], "who": ids})


def test_long_ids_of_decimals_are_of_different_people():
    ids = [Decimal(9007199254740992 + i) for i in range(3)]
    schema = dpk.Schema(
        [dpk.data.Column("a", "number", lo=0, hi=1), dpk.data.Column("who", "person")]
    )
    assert schema.persons({"a": [0, 1, 0], "who": ids}).tolist() == list(map(str, ids))


@for_each("kind", [np.int8, np.int64, float, str, object])
def test_codes_of_missing_ids_are_refused_in_every_type(kind):
    """Those of whole numbers too: a person without an id in some rows would have more of them."""
    columns = [dpk.data.Column("a", "number", lo=0, hi=1), dpk.data.Column("who", "person")]
    table = {"a": [0, 1, 0, 1], "who": np.array([7, -9, 7, -9]).astype(kind)}
    assert len(dpk.Schema(columns, missing=["?", "-99", "007"]).persons(table)) == 4
    with pytest.raises(ValueError, match=r"column 'who' must name the person .* 2 missing"):
        dpk.Schema(columns, missing=["?", "-9"]).persons(table)


def test_missing_ids_are_refused(tmp_path):
    path = tmp_path / "visits.csv"
    path.write_text("who,a,y\np1,1,0\n,2,1\np2,3,1\n")
    with pytest.raises(ValueError, match=r"missing values .* in column 'who'"):
        dpk.io.read_table(path, person="who")


def test_a_silo_whose_records_are_all_beyond_those_of_persons_is_refused():
    X, y = np.zeros((6, 2)), np.tile([1.0, -1.0], 3)
    with pytest.raises(ValueError, match="got 1 of 2 silos that are empty"):
        dpk.SiloData(X, y, [0, 4, 6], person=[1, 1, 2, 2, 1, 2], max_records=2)
