"""The examples run, and what they write agrees with what they say."""

import functools
import importlib
import json
import os
import re
import runpy
import subprocess
import sys

import numpy as np
import pytest

import dpkern as dpk
from dpkern.papers import noise

PUBLIC = {
    **{"a9a": 123, "ijcnn1": 22, "adult": 48, "wisconsin": 9, "wdbc": 30},
    **{"kdd99": 122, "bank": 65},
}


@pytest.fixture(scope="module")
def example(source_tree):
    """Run a script outside the tree."""

    def run(name, *arguments, cwd, data=None, path=None):
        environment = {k: v for k, v in os.environ.items() if k != "DPKERN_DATA"}
        if path is not None:
            environment["PYTHONPATH"] = str(path)
        if data is not None:
            environment["DPKERN_DATA"] = str(data)
        script = source_tree / "examples" / "papers" / name
        return subprocess.run(
            [sys.executable, script, *arguments],
            cwd=cwd,
            env=environment | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


@pytest.fixture(scope="module")
def wd_dp(example):
    return functools.partial(example, "wd_dp.py")


@pytest.fixture(scope="module")
def quick(wd_dp, tmp_path_factory):
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("wd_dp")
    run = wd_dp("--quick", "--sets", "wdbc", "--out", "results", cwd=folder)
    assert run.returncode == 0, run.stderr
    return run, folder / "results"


def points(results, name):
    return json.loads((results / f"{name}.json").read_text())["points"]


@pytest.mark.docs
def test_every_experiment_of_wd_dp_leaves_numbers_and_a_figure(quick):
    run, results = quick
    names = {"epsilon", "ratio", "regression", "rounds", "claims"}
    assert {path.name for path in results.iterdir()} == {
        f"{name}.{kind}" for name in names for kind in ("json", "png")
    }
    for name in names:
        assert (results / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        for point in points(results, name):
            assert f"{point['score']:.4f}" in run.stdout or point["score"] >= 10
            assert point["gap"] > -1e-6


@pytest.mark.docs
def test_sound_runs_of_wd_dp_certify_no_more_than_their_epsilon_and_printed_ones_do(quick):
    _, results = quick
    for name in ("epsilon", "ratio", "regression", "rounds"):
        noisy = [point for point in points(results, name) if point["epsilon"] is not None]
        assert noisy
        for point in noisy:
            assert 0.999 * point["epsilon"] < point["certified"] <= point["epsilon"]
    for point in points(results, "claims"):
        if point["method"] in ("WD-DP, printed", "Huang, printed"):
            assert point["certified"] > 1.5 * point["epsilon"]


@pytest.mark.docs
def test_huangs_theorem_is_above_the_gap_and_says_nothing_from_two_on(example, tmp_path):
    run = example("huang.py", "bound", "--quick", "--out", "out", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    rows = re.findall(r"^(?:one|even).* (\d+) +\S+ +(\S+) +(\S+) \+- ", run.stdout, re.MULTILINE)
    assert [int(K) for K, _, _ in rows] == [1, 2, 5, 1, 2, 5]
    for K, bound, gap in rows:
        assert 0.0 < float(gap) < float(bound)
        assert (float(bound) > np.log(2.0)) == (int(K) > 1)
    run = example("huang.py", "optimal_k", "--quick", "--out", "out", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    found = points(tmp_path / "out", "huang_optimal_k")
    assert len({p["panel"] for p in found}) == 3
    for point in found:
        assert 0.999 * point["epsilon"] < point["certified"] <= point["epsilon"]
        assert point["score"] > 0.0


@pytest.mark.docs
def test_wd_dps_gap_without_noise_on_weights_is_below_equation_15(example, tmp_path):
    run = example("wd_dp.py", "bound", "--quick", "--sets", "wdbc", "--out", "out", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    rows = [line.split()[2:] for line in run.stdout.splitlines() if line.startswith("wdbc")]
    assert len(rows) == 3
    for row in rows:
        assert 0.0 < float(row[5]) < float(row[2])


@pytest.mark.docs
def test_a_figure_of_wd_dp_certifies_its_budget(example, tmp_path):
    pytest.importorskip("matplotlib")
    run = example("wd_dp.py", "figure14", "figure20", "--quick", "--out", "out", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    for name in ("figure14", "figure20"):
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert {p["panel"].split(",")[1] for p in points(tmp_path / "out", name)} == {" 16 silos"}
        for point in points(tmp_path / "out", name):
            assert 0.999 * point["epsilon"] < point["certified"] <= point["epsilon"]
    wrong = example("wd_dp.py", "figure21", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "there is no 'figure21'; figures are figure1 to figure20" in wrong.stderr


@pytest.mark.docs
def test_newton_runs_certify_their_mu_and_the_printed_search_nothing(example, tmp_path):
    pytest.importorskip("matplotlib")
    printed = ("figure1", "figure2", "figure3", "figure4", "baselines")
    how = ("--quick", "--sets", "synthetic", "--out", "out")
    for names, sound in ((printed, ()), (("figure1", "figure4"), ("--sound",))):
        run = example("local_newton.py", *names, *how, *sound, cwd=tmp_path)
        assert run.returncode == 0, run.stderr
        for name in names:
            assert f"{name}: " in run.stdout
            stem = f"{name}_sound" if sound else name
            assert (tmp_path / "out" / f"{stem}.png").read_bytes().startswith(b"\x89PNG")
            for point in points(tmp_path / "out", stem):
                searched = not sound and name != "baselines" and "GDP" not in point["method"]
                if point["epsilon"] is None or (searched and "0.03" not in point["method"]):
                    assert point["certified"] is None
                elif searched or "printed" in point["method"]:
                    assert point["certified"] == pytest.approx(0.866 * point["epsilon"], rel=1e-3)
                else:
                    assert 0.999 * point["epsilon"] < point["certified"] <= point["epsilon"]
    methods = {p["method"]: p["gap"] for p in points(tmp_path / "out", "baselines") if p["x"] == 10}
    assert methods["Newton, central"] < 0.1 * methods["descent, central"]


@pytest.mark.docs
def test_newton_without_the_covtype_file_says_which_is_missing(example, tmp_path):
    run = example("local_newton.py", "figure1", "--sets", "covtype", cwd=tmp_path, data=tmp_path)
    assert run.returncode == 2
    assert "covtype/covtype.data.gz" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.docs
def test_lasso_example_certifies_its_budget_where_sound_and_says_what_their_noise_is_worth(
    example, tmp_path
):
    pytest.importorskip("matplotlib")
    run = example("lasso_admm.py", "--quick", "--out", "out", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "out" / "lasso.png").stat().st_size > 0
    found = points(tmp_path / "out", "lasso")
    assert {p["method"] for p in found} >= {"ADMM, central", "ADMM, federated", "DP-prox-SGD"}
    for point in found:
        if "printed" in point["method"] or "code" in point["method"]:
            assert point["certified"] is None or point["certified"] > 10 * point["epsilon"]
        else:
            assert 0.99 * point["epsilon"] <= point["certified"] <= point["epsilon"]
    # The code's noise grows faster with 1 / epsilon than the formula's, a variance for a deviation.
    scores = {(p["method"], p["epsilon"]): p["score"] for p in found}
    most = max(p["epsilon"] for p in found)
    for mode in ("central", "federated"):
        code, printed = (f"ADMM, {mode}, {kind}" for kind in ("code", "printed"))
        assert scores[code, 0.01] > 2.0 * scores[printed, 0.01]
        assert scores[code, most] < scores[printed, most]


@pytest.fixture
def load_script(source_tree, monkeypatch):
    """Import a script of the papers, which imports others beside it."""
    monkeypatch.syspath_prepend(source_tree / "examples" / "papers")
    return importlib.import_module


@pytest.mark.docs
def test_restated_admm_without_its_deviations_is_that_of_dpkern(load_script):
    lasso, variants = load_script("lasso_admm"), load_script("lasso_admm_variants")
    p = variants.authors_problem()
    how = {"clip": 100.0, "rounds": 20}  # no displacement is as long
    repaired = functools.partial(
        variants.admm, p, 0.0, 0, everybody=True, clip_norm=how["clip"], rounds=how["rounds"]
    )
    z = repaired(**variants.REPAIRED)[-1]
    users = lasso.SAMPLED | {"participation": lasso.N_TRAIN}
    setting = lasso.THEIRS | how | users | {"l1": 0.5 * p.alpha}
    reference = lasso.solve(p.train, "admm", setting, None, 0).coef
    assert np.abs(reference).max() > 0.5
    np.testing.assert_allclose(z, reference, rtol=0, atol=1e-9)
    for name, value in (("start", 10.0), ("threshold", 2.0 / lasso.N), ("carry", False)):
        deviating = repaired(**variants.REPAIRED | {name: value})[-1]
        assert np.abs(deviating - reference).max() > 1e-4


@pytest.mark.docs
def test_a_user_drawn_twice_has_two_turns(load_script):
    users = np.array([4, 1, 4, 4, 0, 1])
    groups = list(load_script("lasso_admm_variants").take_turns(users))
    assert [sorted(group) for group in groups] == [[0, 1, 4], [1, 4], [4]]


@pytest.mark.docs
def test_restated_lasso_programs_have_the_bias_and_the_noise_of_the_page(example, tmp_path):
    run = example("lasso_admm_variants.py", "--quick", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "NOT PRIVATE" in run.stdout
    cell = r" +(\S+) \((\S+)\)"
    rows = {
        name.strip(): [float(value) for value in values]
        for name, *values in re.findall(rf"^(.+?){3 * cell}$", run.stdout, re.MULTILINE)
    }
    assert len(rows) == 6
    # The last iterates without noise.
    assert rows["ADMM, code"][5] > 2.0 * rows["ADMM from z = 0, code"][5]
    assert rows["ADMM from z = 0, code"][5] > 2.0 * rows["ADMM itself, code's noise"][5]
    # The least of all iterates at epsilon 0.22: ADMM is ahead with the code's noise only.
    assert rows["ADMM, code"][0] < rows["proximal gradient, code"][0]
    assert rows["ADMM, root of it"][0] > rows["proximal gradient, root of it"][0]


@pytest.fixture
def spider_variants(load_script):
    return load_script("isrl_spider"), load_script("isrl_spider_variants")


@pytest.mark.docs
def test_restated_algorithm_11_without_clip_and_noise_makes_gradient_steps(spider_variants):
    spider, variants = spider_variants
    p, model = spider.wisconsin(0), dpk.MLP(hidden=(5,))
    silos, w, how = (
        variants.silos_of(p),
        model.start(p.train),
        variants.Program(clip=np.inf, step=0.5),
    )
    for method, updates in ((variants.algorithm_11, 8), (variants.minibatch_sgd, 5)):
        reference = w
        for _ in range(updates):
            means = [model.gradients(reference, X, y).mean(axis=0) for X, y in silos]
            reference = reference - 0.5 * np.mean(means, axis=0)
        assert np.abs(reference - w).max() > 0.1
        found = method(how, silos, w, 0.0, 5, 0)
        np.testing.assert_allclose(found, reference, rtol=0, atol=1e-12)


@pytest.mark.docs
def test_restated_programs_clip_a_record_or_its_tensors(spider_variants):
    spider, variants = spider_variants
    p, model = spider.wisconsin(0), dpk.MLP(hidden=(5,))
    (X, y), w = variants.silos_of(p)[1], model.start(p.train)
    g = model.gradients(w, X, y)
    n, layers = len(y), (g[:, :155].reshape(-1, 5, 31), g[:, 155:].reshape(-1, 2, 6))

    def clipped(rows, most):
        norms = np.linalg.norm(rows.reshape(n, -1), axis=1)
        shorter = np.minimum(1.0, most / np.maximum(norms, 1e-300))
        return (rows.reshape(n, -1) * shorter[:, np.newaxis]).reshape(rows.shape)

    most = float(np.median(np.linalg.norm(g, axis=1)))  # clips half of the records
    whole = clipped(g, most).mean(axis=0)
    how = variants.Program(clip=most)
    divided = variants.Program(clip=most / n, clip_after_division=True)
    for program in (how, divided):
        found = variants.clipped_mean(program, w, X, y)
        np.testing.assert_allclose(found, whole, rtol=0, atol=1e-14)
    parts = [
        np.concatenate([clipped(t, most) for t in (layer[..., :-1], layer[..., -1:])], axis=2)
        for layer in layers
    ]
    by_tensor = np.hstack([part.mean(axis=0).ravel() for part in parts])
    assert np.abs(by_tensor - whole).max() > 1e-3
    found = variants.clipped_mean(variants.Program(clip=most, per_tensor=True), w, X, y)
    np.testing.assert_allclose(found, by_tensor, rtol=0, atol=1e-14)


@pytest.mark.docs
def test_noise_of_restated_programs_is_the_printed_one(spider_variants):
    spider, variants = spider_variants
    p = spider.wisconsin(0)
    n, claim = float(p.train.sizes.min()), {"epsilon": 3.0, "delta": p.delta}
    how = {"clip": 0.5, "sizes": np.array([n]), "rounds": variants.ROUNDS, "refresh_every": 2}
    printed = noise.Spider(claim, **how, alternate=True)
    unit = variants.unit(p, 3.0, 0.5)
    assert unit == pytest.approx(printed.refresh[0], rel=1e-12)
    assert 2.0 * unit == pytest.approx(printed.difference(np.inf)[0], rel=1e-12)
    # Without gradients two updates of step 1 are by 2 v + d, or v + v', of two silos' noises.
    silos, none = variants.silos_of(p), variants.Program(clip=0.0)
    for method, variance in ((variants.algorithm_11, 4.0 + 4.0), (variants.minibatch_sgd, 2.0)):
        ends = [method(none, silos, np.zeros(167), unit, 2, seed) for seed in range(40)]
        found = np.mean(np.var(ends, axis=0, ddof=1))
        assert found == pytest.approx(0.5 * variance * unit**2, rel=0.1)


@pytest.mark.docs
def test_clip_after_division_is_what_the_programs_gain_on_mnist(example, tmp_path, real_data):
    run = example("isrl_spider_variants.py", "--quick", cwd=tmp_path, data=real_data)
    assert run.returncode == 0, run.stderr
    assert "NOT PRIVATE" in run.stdout
    rows = dict(re.findall(r"^(.+?)  +(\S+) \+- \S+$", run.stdout, re.MULTILINE))
    for name in ("SPIDER", "minibatch SGD"):
        before = rows[f"{name}: batches of 606, with replacement"]
        assert float(rows[f"{name}: clipped after division"]) < 0.7 * float(before)
        kinds = ("dpkern, printed noise, L = 5", "as printed, L = 5")
        printed = [rows[f"{name}: {kind}"] for kind in kinds]
        assert float(printed[0]) == pytest.approx(float(printed[1]), rel=0.25)


@pytest.mark.docs
def test_restated_programs_without_mnist_say_so_in_one_line(example, tmp_path):
    run = example("isrl_spider_variants.py", "--quick", cwd=tmp_path, data=tmp_path)
    assert run.returncode == 2
    assert "mnist" in run.stderr
    assert run.stderr.count("\n") == 1


@pytest.mark.docs
def test_sound_runs_of_spider_certify_their_budget_and_printed_ones_miss_it(example, tmp_path):
    pytest.importorskip("matplotlib")
    run = example("isrl_spider.py", "--quick", "--out", "out", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "without MNIST: the environment variable DPKERN_DATA is not set" in run.stdout
    assert (tmp_path / "out" / "spider.png").read_bytes().startswith(b"\x89PNG")
    found = points(tmp_path / "out", "spider")
    assert {p["panel"] for p in found} == {"Wisconsin diagnostic"}
    assert len({p["method"] for p in found}) == 6
    for point in found:
        assert 0.0 <= point["score"] <= 1.0
        if point["epsilon"] is None:
            assert point["certified"] is None
        elif "printed" not in point["method"]:
            assert 0.999 * point["epsilon"] < point["certified"] <= point["epsilon"]
        else:  # more noise than needed for small budgets, and too little for large ones
            assert (point["certified"] > point["epsilon"]) == (point["epsilon"] == 18.0)


@pytest.mark.docs
def test_localized_runs_of_a_panel_certify_their_budget(example, tmp_path):
    pytest.importorskip("matplotlib")
    run = example("localized_sgd.py", "m", "--quick", "--draws", "1", "--out", "out", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    found = points(tmp_path / "out", "localized_sgd_m")
    assert {p["x"] for p in found} == {3.0, 100.0}
    assert all(0.999 * p["epsilon"] < p["certified"] <= p["epsilon"] for p in found)
    assert all(p["score"] > 0.0 for p in found)


@pytest.mark.docs
def test_network_in_pytorch_learns_and_certifies_its_budget(example, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("dp_accounting")
    run = example("../torch_cnn.py", "--rounds", "20", "--epsilon", "8", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    accuracy, *certificate = run.stdout.splitlines()
    assert float(accuracy.rpartition(" ")[2]) > 0.25  # ten digits
    stated = next(line.split() for line in certificate if line.startswith("  epsilon"))
    assert 7.9 < float(stated[3]) <= 8.0
    assert stated[-1] == "1e-05"


@pytest.mark.docs
def test_network_without_pytorch_says_what_is_missing(example, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError\n")
    run = example("../torch_cnn.py", cwd=tmp_path, path=tmp_path)
    assert run.returncode == 1
    assert run.stderr == "torch_cnn.py needs PyTorch: pip install torch\n"


@pytest.mark.docs
def test_missing_files_of_wd_dp_are_named_in_one_line(wd_dp, tmp_path):
    for data, cause in ((None, "DPKERN_DATA is not set"), (tmp_path, "is not there")):
        run = wd_dp("--quick", cwd=tmp_path, data=data)
        assert run.returncode == 2
        assert cause in run.stderr
        assert "a9a/a9a.t.xz" in run.stderr
        assert "Traceback" not in run.stderr
        assert run.stderr.count("\n") == 1


@pytest.mark.docs
def test_features_of_the_public_sets_have_their_documented_bounds_and_counts(
    source_tree, real_data
):
    load = runpy.run_path(source_tree / "examples" / "papers" / "public_sets.py")["load"]
    records = {}
    for name, n_features in PUBLIC.items():
        task = load(name)
        assert task.X.shape[1] == n_features
        assert task.X_test.shape[1] == n_features
        assert task.X.min() >= -1.0
        assert task.X.max() <= 1.0
        assert len(set(task.y.tolist())) == 2
        records[name] = task.X.shape[0] + task.X_test.shape[0]
    # Adult without incomplete records, as in the paper.
    assert records == {
        "a9a": 48842,
        "ijcnn1": 141691,
        "adult": 45222,
        "wisconsin": 683,
        "wdbc": 569,
        "kdd99": 70000,
        "bank": 41188,
    }


@pytest.mark.docs
def test_every_word_of_adult_is_a_documented_one(source_tree, real_data):
    load = runpy.run_path(source_tree / "examples" / "papers" / "public_sets.py")["load"]
    for task in (load("adult"), load("adult", regression=True)):
        words = task.X[:, -43:]  # six columns of words and the country
        assert set(np.unique(words)) == {0.0, 1.0}
        assert np.all(words[:, :-1].sum(axis=1) == 6.0)
        assert 0.9 < words[:, -1].mean() < 1.0


@pytest.mark.docs
def test_the_programs_of_the_page_on_models_of_ones_own_run_as_printed(source_tree):
    text = (source_tree / "docs" / "isrl.md").read_text()
    names = {}
    for program in re.findall(r"```python\n(.*?)\n```", text, re.DOTALL):
        exec(program, names)
    assert names["result"].score(names["X"] / 16, names["y"]) > 0.7
    assert names["result"].privacy.epsilon(1e-5) <= 8.0


@pytest.mark.docs
def test_the_certificate_of_the_page_is_the_one_that_its_programs_print(
    source_tree, capsys, tmp_path, monkeypatch
):
    text = (source_tree / "docs" / "certificate.md").read_text()
    found = re.findall(r"```(\w*)\n(.*?)\n```", text, re.DOTALL)
    blocks = iter([block for language, block in found if language in ("", "python")])
    monkeypatch.chdir(tmp_path)
    names = {}
    for program, printed in zip(blocks, blocks, strict=True):
        exec(program, names)
        # Noise is fresh, and so are digests and the time.
        fresh = re.compile(r"(sha256:)[0-9a-f]+|\d{4}-\d\d-\d\dT[\d:]{8}Z")
        found = capsys.readouterr().out.rstrip()
        assert fresh.sub(r"\1", found) == fresh.sub(r"\1", printed)
