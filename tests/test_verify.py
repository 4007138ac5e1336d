"""`dpkern verify` accepts every certificate that dpkern makes and rejects edited ones.

Each edit is tried twice: as it is, which the digest notices, and with the digest computed anew by
the editor, which figures or structure must notice. What only the digest can tell is listed in
`ONLY_THE_DIGEST`: no arithmetic shows where noise was drawn from, what a sum was of, or what else
was declared.
"""

import copy
import functools
import json
import math
import re
import sys
import xml.etree.ElementTree
from dataclasses import replace

import numpy as np
import pytest
from released_data import data
from released_runs import runs
from scipy import stats

import dpkern as dpk
from dpkern.cli import main
from dpkern.privacy import compose_parallel, compose_sequential
from dpkern.privacy.curves import epsilon_curve, trade_off
from dpkern.privacy.law import ConcentratedDP, GaussianDP
from dpkern.privacy.objective_perturbation import ObjectivePerturbation
from dpkern.privacy.recomputation import Guarantee
from dpkern.privacy.selection import Selection
from dpkern.privacy.serialization import digest
from dpkern.privacy.verify import verify_certificate

# Quadrature takes a second each, dp-accounting's Poisson batches half of one.
SLOW = ("objective_perturbation/", "poisson")
FEW = {
    "objective_perturbation/central",
    "objective_perturbation/layout/csr",
    "minibatch_sgd/central/poisson",
}


def quick(id):
    return id in FEW or not any(name in id for name in SLOW)


def made(id):
    return runs()[id].run(1).privacy


def form(certificate):
    """The certificate as its file has it."""
    return json.loads(json.dumps(certificate.to_dict(), allow_nan=False))


def assert_verified(certificate):
    found = dpk.verify(form(certificate))
    assert found.ok, str(found)
    return found


def test_recorded_runs_are_verified():
    """Every eighth run, and all with samples, shufflers or perturbed objectives that are quick."""
    special = ("shuffle", "without_replacement", "paper", "add_remove", "admm/users")
    chosen = [id for i, id in enumerate(runs()) if i % 8 == 0 or any(s in id for s in special)]
    for id in {*filter(quick, chosen), *FEW}:
        assert_verified(made(id))


@pytest.mark.proof
def test_all_recorded_runs_are_verified():
    for id in runs():
        assert_verified(made(id))


def test_older_certificates_do_not_state_the_distance_of_models():
    values = form(certificate("differences"))
    for release in values["releases"]:
        release.pop("between", None)
    values["digest"] = digest(values)
    found = dpk.verify(values)
    assert found.ok
    (taken,) = [c for c in found.checks if c.what == "sensitivity of differences"]
    assert taken.recomputed == "taken as stated"
    assert not [c for c in dpk.verify(form(certificate("differences"))).checks if c == taken]


@functools.cache
def certificate(name):
    """Certificates of every law, composition and restatement."""
    if name == "selection":
        candidates = {"clip": stats.uniform(0.5, 0.5), "step_size": [0.5, 1.0]}
        budget = dpk.Budget(epsilon=2.0, delta=1e-5)
        how = {"solver": "gradient_descent", "rounds": 3, "budget": budget, "rng": 1}
        return dpk.select(candidates, data("dense"), **how).privacy
    if name == "ranges":
        X = np.linspace(-1.0, 1.0, 60)[:, np.newaxis] * np.ones((1, 3))
        return dpk.private_range(
            X, bounds=(-4.0, 4.0), budget=dpk.Budget(epsilon=1.0, delta=1e-6)
        ).privacy
    gd, silo = made("gradient_descent/loss/logistic"), made("spider/layout/csr")
    shuffle = made("prox_svrg/shuffle")
    perturbed = made("objective_perturbation/layout/csr")
    return {
        "run": lambda: gd,
        "silo": lambda: silo,
        "differences": lambda: made("prox_svrg/loss/smoothed_hinge"),
        "shuffle": lambda: shuffle,
        "perturbed": lambda: perturbed,
        "cyclic": lambda: made("minibatch_sgd/silo/cyclic"),
        "changes": lambda: made("admm/records/federated"),
        "batches": lambda: made("minibatch_sgd/central/without_replacement"),
        "poisson": lambda: made("minibatch_sgd/central/poisson"),
        "sequential": lambda: compose_sequential(gd, silo, gd),
        "parallel": lambda: compose_parallel(gd, silo),
        "nested": lambda: compose_parallel(compose_sequential(gd, silo), gd).group(2),
        "shuffles": lambda: compose_sequential(shuffle, gd, shuffle),
        "shuffles apart": lambda: compose_parallel(shuffle, gd),
        "perturbed twice": lambda: compose_sequential(perturbed, gd, perturbed),
        "perturbed apart": lambda: compose_parallel(perturbed, gd),
        "person": lambda: gd.group(3),
        "people": lambda: compose_sequential(gd.group(3), silo.group(3)),
        "person of a selection": lambda: certificate("selection").group(2),
        "person, perturbed": lambda: perturbed.group(2),
        "whole silo": lambda: silo.user_level(),
        "aggregates": lambda: silo.central(),
        "both": lambda: compose_sequential(silo.central(), gd),
        "nothing": lambda: made("gradient_descent/budget/none"),
        "nothing twice": lambda: compose_sequential(made("gradient_descent/budget/none"), gd),
    }[name]()


NAMES = (
    *("selection", "ranges", "run", "silo", "differences", "shuffle", "perturbed", "cyclic"),
    *("batches", "changes"),
    *("poisson", "sequential", "parallel", "nested", "shuffles", "shuffles apart"),
    *("perturbed twice", "perturbed apart", "person", "people", "person of a selection"),
    *("person, perturbed", "whole silo", "aggregates", "both", "nothing", "nothing twice"),
)


@pytest.mark.parametrize("name", NAMES)
def test_every_law_composition_and_restatement_is_verified(name):
    made = certificate(name)
    assert_verified(made)
    assert dpk.Certificate.from_dict(form(made)) == made


def edit(path, change):
    """An edit of the entry at a path of keys, by a function or to a value."""

    def apply(values):
        *keys, last = path.split("/")
        for key in keys:
            values = values[int(key) if isinstance(values, list) else key]
        last = int(last) if isinstance(values, list) else last
        values[last] = change(values[last]) if callable(change) else change

    return apply


def both(*edits):
    def apply(values):
        for one in edits:
            one(values)

    return apply


def times(factor):
    return lambda v: [factor * x for x in v] if isinstance(v, list) else factor * v


def dropped(path):
    return edit(path, lambda v: v[:-1])


def rounded(factor):
    return lambda v: round(factor * v)


LAW = "guarantee/law"
FIRST = "releases/0"
EDITS = {
    "sensitivity": ("run", edit(f"{FIRST}/sensitivity", times(0.5))),
    "sensitivity and std alike": (
        "run",
        both(edit(f"{FIRST}/sensitivity", times(0.5)), edit(f"{FIRST}/std", times(0.5))),
    ),
    "sensitivity 0": ("silo", edit(f"{FIRST}/sensitivity", [0.0, 0.0, 0.0])),
    "sensitivity of a silo": ("silo", edit(f"{FIRST}/sensitivity", [2.0, 4.0, 2.0])),
    "sensitivity and std of differences alike": (
        "differences",
        both(
            edit("releases/1/sensitivity", times(1.0 - 1e-6)),
            edit("releases/1/std", times(1.0 - 1e-6)),
        ),
    ),
    "distance of two models": ("differences", edit("releases/1/between/0", times(1.0 + 1e-6))),
    "row bound of differences": ("differences", edit("declared/row_bound", times(1.01))),
    "less std": ("run", edit(f"{FIRST}/std", times(0.99))),
    "more std": ("run", edit(f"{FIRST}/std", times(1.01))),
    "std of a silo": ("silo", edit(f"{FIRST}/std/1", times(0.5))),
    "no std": ("run", edit(f"{FIRST}/std", None)),
    "times": ("run", edit(f"{FIRST}/times", lambda v: v + 1)),
    "times 0": ("run", edit(f"{FIRST}/times", 0)),
    "a release dropped": ("silo", dropped("releases")),
    "all releases dropped": ("run", edit("releases", [])),
    "delta of an epsilon": ("run", edit("guarantee/epsilon/0/delta", 1e-7)),
    "stated delta": ("run", edit("guarantee/at_delta", 1e-7)),
    "epsilon lowered": ("run", edit("guarantee/epsilon/1/epsilon", times(0.999999))),
    "epsilon raised": ("run", edit("guarantee/epsilon/1/epsilon", times(1.000001))),
    "delta lowered": ("run", edit("guarantee/delta/0/delta", times(0.9999))),
    "delta raised": ("run", edit("guarantee/delta/0/delta", times(1.0001))),
    "mu lowered": ("run", both(*(edit(p, times(0.9)) for p in (f"{LAW}/mu", "guarantee/mu")))),
    "mu of the law alone": ("run", edit(f"{LAW}/mu", times(0.9))),
    "mu by a unit in the last place": (
        "run",
        both(*(edit(p, lambda v: math.nextafter(v, 0.0)) for p in (f"{LAW}/mu", "guarantee/mu"))),
    ),
    "rho lowered": ("run", edit("guarantee/rho", times(0.9))),
    "mu of a shuffler": (
        "shuffle",
        both(
            *(edit(p, times(0.99)) for p in (f"{LAW}/mu", "guarantee/mu")),
            edit("guarantee/rho", times(0.99**2)),
        ),
    ),
    "per_record": ("cyclic", edit(f"{FIRST}/per_record", 1)),
    "per_record gone": ("cyclic", edit(f"{FIRST}/per_record", None)),
    "sensitivity and std of changes": (
        "changes",
        both(edit(f"{FIRST}/sensitivity", times(0.9)), edit(f"{FIRST}/std", times(0.9))),
    ),
    "clip norm of changes": ("changes", edit("declared/clip", times(2.0))),
    "relaxation of changes": ("changes", edit("declared/relaxation", 1.0)),
    "coins": ("shuffle", edit(f"{FIRST}/coins", lambda v: 2 * v)),
    "coins and std": (
        "shuffle",
        both(
            edit(f"{FIRST}/coins", lambda v: 4 * v),
            edit(f"{FIRST}/std", times(2.0)),
        ),
    ),
    "coins taken for Gaussian noise": ("shuffle", edit(f"{FIRST}/coins", None)),
    "dim": ("run", edit(f"{FIRST}/dim", 2)),
    "dim of a shuffler": ("shuffle", edit(f"{FIRST}/dim", 2)),
    "grid": ("run", edit(f"{FIRST}/grid", times(3.0))),
    "coarse grid": ("run", edit(f"{FIRST}/grid", times(2.0**30))),
    "no grid": ("run", edit(f"{FIRST}/grid", None)),
    "arithmetic": ("run", edit("arithmetic", "float")),
    "batch sizes": ("batches", edit(f"{FIRST}/sampling/batch_sizes", lambda v: [1] * len(v))),
    "sizes of samples": ("batches", edit(f"{FIRST}/sampling/sizes", times(10))),
    "sizes of samples that are not those declared": (
        "batches",
        both(
            edit(f"{FIRST}/sampling/sizes", times(10)),
            edit("guarantee/epsilon", []),
            edit("guarantee/delta", []),
            edit("guarantee/at_delta", None),
        ),
    ),
    "releases of a selection dropped, mu lowered": (
        "selection",
        both(edit("releases", []), edit(f"{LAW}/mu", times(0.5))),
    ),
    "sizes of batches that are not those declared": (
        "batches",
        both(
            edit(f"{FIRST}/sampling/batch_sizes", lambda v: [1] * len(v)),
            edit("guarantee/epsilon", []),
            edit("guarantee/delta", []),
            edit("guarantee/at_delta", None),
        ),
    ),
    "an empty grid": ("run", edit(f"{FIRST}/grid", [])),
    "what is no text": ("run", edit(f"{FIRST}/what", ["sum of clipped gradients"])),
    "releases beside parts": ("sequential", lambda v: v.update(releases=[])),
    "batch sizes, Poisson": (
        "poisson",
        edit(f"{FIRST}/sampling/batch_sizes", lambda v: [1] * len(v)),
    ),
    "sampling method": ("batches", edit(f"{FIRST}/sampling/method", "poisson")),
    "sampling gone": ("batches", edit(f"{FIRST}/sampling", None)),
    "not amplified": ("batches", edit("guarantee/amplified", False)),
    "amplified": ("run", edit("guarantee/amplified", True)),
    "declared sizes": ("silo", edit("declared/sizes", [30, 30])),
    "gamma": ("selection", edit(f"{LAW}/gamma", times(2.0))),
    "eta": ("selection", edit(f"{LAW}/eta", 0.0)),
    "mean_runs": ("selection", edit("declared/mean_runs", 3.0)),
    "mu of a selection": ("selection", edit(f"{LAW}/mu", times(0.5))),
    "draws of a selection": ("selection", edit("n_draws", 1000)),
    "score of a selection dropped": ("selection", dropped("releases")),
    "volume": ("perturbed", edit(f"{LAW}/volume", times(0.5))),
    "volume in the release too": (
        "perturbed",
        both(edit(f"{LAW}/volume", times(0.5)), edit("releases/1/minimiser/volume", times(0.5))),
    ),
    "shift": (
        "perturbed",
        both(edit(f"{LAW}/shift", times(0.9)), edit("releases/1/minimiser/shift", times(0.9))),
    ),
    "directions": (
        "perturbed",
        both(edit(f"{LAW}/directions", 1), edit("releases/1/minimiser/directions", 1)),
    ),
    "mu given the minimiser": (
        "perturbed",
        both(edit(f"{LAW}/mu", times(0.5)), edit("releases/1/minimiser/mu", times(0.5))),
    ),
    "noise on the minimiser": ("perturbed", edit("releases/0/std", times(0.5))),
    "law": ("shuffle", edit(LAW, {"name": "gaussian", "mu": 0.1})),
    "group size": ("person", edit("group_size", 2)),
    "group size and unit": (
        "person",
        both(edit("group_size", 2), edit("unit", "one person with 2 records")),
    ),
    "group called a record": (
        "person",
        both(edit("group_size", 1), edit("unit", "one record")),
    ),
    "record called a silo": ("run", edit("unit", "one silo, of 30 records at most")),
    "size of the silo": ("whole silo", edit("declared/sizes", [20, 20, 20])),
    "a part dropped": ("sequential", dropped("parts")),
    "a part twice": ("sequential", edit("parts", lambda v: v + v[:1])),
    "sequential called parallel": ("sequential", edit("composition", "parallel")),
    "parallel called sequential": ("parallel", edit("composition", "sequential")),
    "release of a part": ("nested", edit("parts/0/parts/1/releases/0/std", times(2.0))),
    "mu of a part": ("sequential", edit("parts/1/guarantee/mu", times(0.5))),
    "epsilon of a part": ("sequential", edit("parts/1/guarantee/epsilon/0/epsilon", times(0.5))),
    "seeded parts called os": ("sequential", edit("noise", "os")),
    "neighbours": ("run", edit("neighbours", "add_remove")),
    "neighbours of a sum of samples": ("poisson", edit("neighbours", "replace_one")),
    "neighbours of a part": ("sequential", edit("parts/0/neighbours", "add_remove")),
    "trust": ("silo", edit("trust", "central")),
    "stronger trust": ("run", edit("trust", "local")),
    "trust of what was restated": ("aggregates", edit("trust_of_runs", None)),
    "trust of parts": ("sequential", edit("trust", "silo")),
    "draws": ("run", edit("n_draws", 1)),
    "bound": ("shuffle", edit("guarantee/bound", "exact")),
    "a guarantee from nothing": (
        "nothing",
        both(edit("guarantee/mu", 1.0), edit(f"{LAW}/mu", 1.0)),
    ),
    "an epsilon from nothing": ("nothing", edit("guarantee/epsilon/0/epsilon", 1.0)),
}
ONLY_THE_DIGEST = {
    "seeded called os": ("run", edit("noise", "os")),
    "what was released": ("run", edit(f"{FIRST}/what", "sum of something else")),
    "notes": ("batches", edit("notes", [])),
    "distance of two models gone": ("differences", edit("releases/1/between", None)),
    "declared penalty": ("run", edit("declared/l2", 1.0)),
    "package": ("run", edit("package", "dpkern 99")),
    "adversary": ("run", edit("adversary", "sees nothing")),
}


def edited(name, change, *, with_digest):
    values = copy.deepcopy(form(certificate(name)))
    change(values)
    if with_digest:
        values["digest"] = digest(values)
    return values


@pytest.mark.parametrize("what", EDITS)
def test_an_edit_is_rejected_with_the_digest_computed_anew(what):
    name, change = EDITS[what]
    found = dpk.verify(edited(name, change, with_digest=True))
    assert not found.ok, f"{what}: {found}"
    assert found.checks[0].ok
    assert "MISMATCH" in str(found)


@pytest.mark.parametrize("what", EDITS | ONLY_THE_DIGEST)
def test_an_edit_is_rejected_by_the_digest(what):
    name, change = (EDITS | ONLY_THE_DIGEST)[what]
    values = edited(name, change, with_digest=False)
    if name == "run":
        assert not dpk.verify(values).checks[0].ok
    with pytest.raises(ValueError, match="it has been edited"):
        dpk.Certificate.from_dict(values)


@pytest.mark.parametrize("what", ONLY_THE_DIGEST)
def test_what_no_arithmetic_can_tell(what):
    name, change = ONLY_THE_DIGEST[what]
    assert dpk.verify(edited(name, change, with_digest=True)).ok


@pytest.mark.parametrize(
    ("law", "epsilon"),
    [
        (GaussianDP(mu=0.3), 0.5),
        (GaussianDP(mu=4.0), 0.0),
        (GaussianDP(mu=1e-3), 0.02),
        (ConcentratedDP(rho=0.05), 1.0),
        (ConcentratedDP(rho=3.0), 20.0),
        (Selection.of_mean(10.0, eta=0.0, mu=0.2), 1.5),
        (Selection.of_mean(30.0, eta=5.0, mu=0.1), 1.0),
        (ObjectivePerturbation(volume=0.1, shift=0.3, directions=2, mu=0.02), 1.0),
        (ObjectivePerturbation(volume=0.5, shift=0.2, directions=20, mu=0.1), 2.0),
    ],
)
def test_laws_recomputed_agree_from_below(law, epsilon):
    """The figures of dpkern are upper bounds of those by quadrature, and close."""
    parameters = tuple(sorted(vars(law).items()))
    parameters = tuple((k, v) for k, v in parameters if k in law.__dataclass_fields__)
    again = Guarantee(law.name, parameters, 0)
    assert again.delta(epsilon) <= law.delta(epsilon)
    reduced, slack = again.reduced(epsilon)
    assert law.delta(epsilon) <= again.delta(max(reduced, 0.0)) * (1 + slack)


def test_files_are_verified_and_read_again(tmp_path):
    path = tmp_path / "c.json"
    for name in ("run", "nested", "shuffle", "selection", "nothing"):
        certificate(name).save(path)
        assert dpk.Certificate.load(path) == certificate(name)
        found = dpk.verify(path)
        assert found
        assert "c.json, made by dpkern " in str(found)
        assert max(map(len, str(found).splitlines())) <= 88
    assert str(dpk.Certificate.load(path)) == str(certificate("nothing"))
    text = path.read_text()
    assert '"sizes": [10, 20, 30]' in text  # readable: short lists on one line
    assert list(tmp_path.iterdir()) == [path]


def test_a_model_file_and_lines_of_json_are_verified(tmp_path, capsys):
    result = runs()["gradient_descent/loss/logistic"].run(1)
    result.save(tmp_path / "model.npz")
    assert dpk.verify(tmp_path / "model.npz").ok
    lines = [{"budget": 1.0}, *({"certificate": form(certificate(n))} for n in ("run", "silo"))]
    ledger = tmp_path / "study.json"
    ledger.write_text("\n".join(map(json.dumps, lines)))
    found = dpk.verify(ledger)
    assert found.ok
    assert "study.json: 2 certificates" in str(found)
    assert main(["verify", str(ledger)]) == 0
    lines[2]["certificate"]["guarantee"]["mu"] *= 0.5
    ledger.write_text("\n".join(map(json.dumps, lines)))
    assert main(["verify", str(ledger)]) == 1
    out = capsys.readouterr().out
    assert re.search(r"2: mu +0\.25\d+ +0\.50\d+ +MISMATCH", out)
    assert "do not rely on it" in out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no certificate"),
        ("1 2", "not JSON"),
        ("[1]", "holds no certificate"),
        ("{}", "is no certificate"),
        ('{"format": "dpkern certificate", "version": 1}', "is no certificate"),
        ("PK", "is no dpkern model"),
        ('{"budget": 1}\n{"budget": 2}', "holds no certificate"),
        ("\xff\xfe", "neither JSON nor a dpkern model"),
    ],
)
def test_other_files_are_refused_with_status_2(tmp_path, capsys, text, message):
    path = tmp_path / "file"
    path.write_bytes(text.encode("latin-1"))
    assert main(["verify", str(path)]) == 2
    assert message in capsys.readouterr().err
    with pytest.raises(ValueError, match="not a dpkern certificate"):
        dpk.Certificate.load(path)


def test_another_version_and_damage_are_refused():
    values = form(certificate("run"))
    with pytest.raises(ValueError, match="has version 2 of the format, and this release"):
        dpk.verify(values | {"version": 2})
    with pytest.raises(ValueError, match="is damaged: KeyError 'releases'"):
        verify_certificate({k: v for k, v in values.items() if k != "releases"})
    with pytest.raises(ValueError, match="is damaged"):
        verify_certificate(values | {"group_size": "two"})


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("run", "releases/0/sensitivity", 1e308),
        ("run", "guarantee/epsilon/0/epsilon", 1e308),
        ("run", "guarantee/mu", {"__float__": []}),
        ("run", "guarantee/mu", {"__float__": "x"}),
        ("batches", "releases/0/dim", {"__float__": "inf"}),
        ("batches", "releases/0/sampling/sizes", lambda v: [-n for n in v]),
        ("perturbed", "declared/row_bound", 1e308),
        ("selection", "guarantee/law/gamma", 0.0),
    ],
)
def test_numbers_of_any_size_are_a_mismatch_or_damage(name, path, value):
    values = edited(name, edit(path, value), with_digest=True)
    try:
        found = dpk.verify(values)
    except ValueError:
        with pytest.raises(ValueError, match="is damaged"):
            dpk.verify(values)
    else:
        assert not found.ok


def test_a_key_that_is_there_twice_is_refused(tmp_path):
    text = json.dumps(form(certificate("run")))
    path = tmp_path / "twice.json"
    path.write_text('{"guarantee": {"epsilon": 0.1}, ' + text[1:])
    with pytest.raises(ValueError, match="a key is there twice"):
        dpk.verify(path)


def test_sizes_are_public_numbers_where_records_are_added(tmp_path):
    how = {"clip": 1.0, "l2": 0.01, "neighbours": "add_remove", "public_size": 60}
    budget = dpk.Budget(epsilon=1.0, delta=1e-6)
    accountant = dpk.Accountant(tmp_path / "a", epsilon=3, delta=1e-6, neighbours="add_remove")
    for sizes in ({}, {"weights": "uniform", "public_size": [19, 20, 21]}):
        result = dpk.solve(
            "objective_perturbation",
            data("dense"),
            budget=budget,
            accountant=accountant,
            **(how | sizes),
        )
        assert_verified(result.privacy)
    assert dpk.verify(tmp_path / "a").ok


def test_the_charge_of_a_selection_is_verified(tmp_path):
    budget = dpk.Budget(epsilon=2.0, delta=1e-6)
    accountant = dpk.Accountant(tmp_path / "a", epsilon=3.0, delta=1e-6)
    how = {"solver": "gradient_descent", "clip": 1.0, "mean_runs": 2.0, "rng": 1}
    dpk.select([{"rounds": 3}], data("dense"), budget=budget, accountant=accountant, **how)
    found = dpk.verify(tmp_path / "a")
    assert found.ok
    assert re.search("mu of one run .* taken as stated +ok", str(found))


def test_a_certificate_itself_is_refused_with_the_cure():
    with pytest.raises(TypeError, match=r"such as result\.privacy\.to_dict\(\), got Certificate"):
        dpk.verify(certificate("run"))


def test_a_missing_package_is_named_with_the_cure(monkeypatch):
    from dpkern.privacy.recomputation import multiprecision

    multiprecision.cache_clear()
    monkeypatch.setitem(sys.modules, "mpmath", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'dpkern\[verify\]'"):
        dpk.verify(form(certificate("run")))


def test_verification_shares_nothing_with_what_it_verifies(source_tree):
    """It would repeat its errors."""
    for name in ("verify", "verification", "plain_releases", "recomputation"):
        text = (source_tree / "src" / "dpkern" / "privacy" / f"{name}.py").read_text()
        found = set(re.findall(r"^(?:from|import) (dpkern\S*)", text, re.MULTILINE))
        own = ("verification", "plain_releases", "recomputation")
        assert found <= {f"dpkern.privacy.{name}" for name in own}


def test_curves_of_a_certificate_are_those_of_its_law(tmp_path):
    found = certificate("run")
    for delta, epsilon in epsilon_curve(found):
        assert found.delta(epsilon) <= delta
    normal = stats.norm
    for a, b in trade_off(found):  # Dong, Roth, Su 2022, Definition 2.6
        exact = normal.cdf(normal.isf(a) - found.mu)
        assert exact - 0.01 <= b <= exact + 1e-9
    pytest.importorskip("matplotlib")
    found.plot(tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match="must state a guarantee to be drawn"):
        certificate("nothing").plot(tmp_path / "none.png")


def test_notebooks_show_tables_with_all_text_escaped():
    result = runs()["gradient_descent/loss/logistic"].run(1)
    for shown in (result._repr_html_(), result.privacy._repr_html_()):
        assert "seeded: not private" in shown
        assert "<th" in shown
        xml.etree.ElementTree.fromstring(f"<div>{shown}</div>")
    noted = replace(result.privacy, notes=("<b>&",))._repr_html_()
    assert "&lt;b&gt;&amp;" in noted
    plan = dpk.plan(3000, 5, budget=dpk.Budget(epsilon=1.0, delta=1e-6), row_bound=1.0)
    assert plan._repr_html_().count("<tr>") == 1 + len(plan.rows)


def test_the_band_of_a_run_is_that_of_its_noise(tmp_path):
    """Of 200 gradients that are next to nothing beside the noise 95 % lie in it, give or take."""
    quiet = {"clip": 1e-3, "rounds": 200, "step_size": 1e-9, "weights": "size", "rng": 3}
    budget = dpk.Budget(mu=1e-4)
    for trust in ("central", "silo"):
        result = dpk.solve("gradient_descent", data("dense"), budget=budget, trust=trust, **quiet)
        low, high = result._noise_band()
        norms = np.array(result.history["gradient_norm"])
        assert 0.9 <= np.mean((low < norms) & (norms < high)) <= 0.99
    pytest.importorskip("matplotlib")
    for id in ("minibatch_sgd/monitor/public", "gradient_descent/monitor/train"):
        other = runs()[id].run(1)
        other.plot(tmp_path / "run.png")
        assert (tmp_path / "run.png").stat().st_size > 5_000
    assert runs()["local_newton/layout/csr"].run(1)._noise_band() is None


@functools.cache
def of_people(name, **options):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (300, 3))
    person = rng.integers(0, 150, 300)
    how = {"intercept": True, "feature_range": (-1.0, 1.0), "person": person, "max_records": 4}
    people = dpk.SiloData.split(X, X[:, 0] > 0.0, 2, seed=0, **how)
    budget = dpk.Budget(epsilon=2.0, delta=1e-6)
    if name == "select":
        how = {"solver": "gradient_descent", "mean_runs": 2, "eta": 0.0}
        return dpk.select([{"rounds": 5}], people, budget=budget, **how, **options).privacy
    if name == "private_range":
        return dpk.private_range(people, bounds=(-9.0, 9.0), budget=budget).privacy
    return dpk.solve(name, people, budget=budget, **options).privacy


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gradient_descent", {}),
        ("gradient_descent", {"trust": "silo"}),
        ("gradient_descent", {"person_clip": None}),
        ("local_newton", {}),
        ("select", {}),
        ("select", {"person_clip": None}),
        ("private_range", {}),
    ],
)
def test_guarantees_for_people_are_verified(name, options):
    assert_verified(of_people(name, **options))


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ({}, {"unit": "one person with at most 40 records"}),
        ({}, {"group_size": 2}),
        ({}, {"declared": {"person_clip": 4.0}}),
        ({"person_clip": None}, {"unit": "one person with at most 40 records"}),
        ({"person_clip": None}, {"group_size": 1}),
        ({"person_clip": None}, {"unit": "one person with at most 4 records", "group_size": 1}),
    ],
)
def test_other_guarantees_for_people_are_rejected(options, change):
    values = form(of_people("gradient_descent", **options))
    for name, value in change.items():
        values[name] = {**values[name], **value} if isinstance(value, dict) else value
    values["digest"] = digest(values)
    assert not verify_certificate(values, "edited").ok


@pytest.mark.parametrize("id", ["admm/silos/federated/silo", "local_sgd/silo/round/one_pass"])
def test_a_series_is_recomputed_from_its_costliest_releases(id):
    certificate = made(id)
    assert all(release.series == 1 for release in certificate.releases)
    assert_verified(certificate)
    forged = form(certificate)
    for release in forged["releases"]:
        release["per_record"] += 1  # which costs more than the certificate states
    assert not dpk.verify(forged).ok
    apart = form(certificate)
    for number, release in enumerate(apart["releases"], 1):
        release["series"] = number  # of which a record is in all
    assert dpk.verify(apart).ok == (len(apart["releases"]) == 1)
