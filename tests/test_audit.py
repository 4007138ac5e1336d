"""Audits: worst pairs reach what is certified, true certificates stand, and false ones fall."""

import math

import numpy as np
import pytest
from cases import for_each
from makers import assert_refused

import dpkern as dpk
from dpkern import kernels
from dpkern.auditing import CertificateViolatedWarning
from dpkern.auditing.pairs import worst_pair
from dpkern.auditing.runs import Pair, one_run
from dpkern.cli import main
from dpkern.solvers import SOLVERS
from dpkern.transcript import Transcript

BUDGET = dpk.Budget(epsilon=8.0, delta=1e-5)


def offers():
    for name, solver in SOLVERS.items():
        declared = solver.declaration
        for trust in declared.trusts:
            for neighbours in declared.neighbours:
                if neighbours == "add_remove" and trust == "shuffle":
                    continue  # refused
                if (name, trust, neighbours) == ("local_sgd", "central", "add_remove"):
                    continue  # refused
                yield name, trust, neighbours


def pair_of(name, trust, neighbours, budget=BUDGET, n=None, **how):
    silos = 2 if trust == "silo" else 1
    where = {"trust": trust, "neighbours": neighbours, "n": n, "m": silos}
    inside, outside, arguments = worst_pair(name, **where, how=how)
    return Pair(inside, outside, name, {**arguments, "budget": budget, "n_threads": 1})


# What the pair reaches of the certified mu. Two releases of ridge are never reached at once: X^T X
# has its sensitivity, sqrt(2) B, for orthogonal rows, and X^T y for parallel ones.
# Scores of newton_inference are at most half of their bound where the model is 0, and squared rows
# do not depend on labels.
LEAST = {("ridge", "replace_one"): 0.91}
LEAST |= {("newton_inference", "replace_one"): 0.19, ("newton_inference", "add_remove"): 0.35}


@for_each(("name", "trust", "neighbours"), list(offers()))
def test_the_pair_reaches_the_certified_mu_and_no_more(name, trust, neighbours):
    """Given what a run releases, its sums on both data sets, in units of the noise."""
    pair = pair_of(name, trust, neighbours)
    certificate, last = pair.certificate()
    seen = pair.transcript(True, 1, Transcript(last=last))
    reached = pair.separation()
    hidden = [entry for entry in seen if entry.exact is None]
    if hidden:  # the noise is within a kernel
        assert trust in ("shuffle", "local") or name in ("objective_perturbation", "wd_dp")
        assert reached == 0.0
        return
    assert reached <= certificate.mu
    assert reached >= LEAST.get((name, neighbours), 0.97) * certificate.mu


def test_a_replay_is_shown_what_was_released_and_shows_the_same():
    pair = pair_of("local_newton", "central", "replace_one")
    last = pair.certificate()[1]
    seen = pair.transcript(True, 3, Transcript(last=last))
    again = pair.transcript(True, 3, Transcript(seen, last=last))
    assert len(seen) == len(again) == last == 8
    for a, b in zip(seen, again, strict=True):
        np.testing.assert_array_equal(a.released, b.released)
        np.testing.assert_array_equal(a.exact, b.exact)
        assert a.rate == 1.0


def test_a_replay_of_a_secret_sample_does_not_tell_which_records_it_has():
    how = {"sampling": "without_replacement", "batch_size": 2, "rounds": 20}
    pair = pair_of("minibatch_sgd", "central", "replace_one", n=20, **how)
    last = pair.certificate()[1]
    seen = pair.transcript(True, 3, Transcript(last=last))
    shown = pair.transcript(True, 3, Transcript(seen, last=last))
    with_it, without = 0.0, 2.0  # two records a sample, all others with the gradient 1
    sums = [entry.exact.item() for entry in seen]
    assert set(np.round(sums)) == {with_it, without}
    assert 0 < np.round(sums).tolist().count(with_it) < 10
    assert all(round(entry.exact.item()) == 18 and entry.rate == 0.1 for entry in shown)


def test_the_ratio_of_a_secret_sample_is_that_of_a_mixture():
    how = {"sampling": "without_replacement", "batch_size": 5, "rounds": 1}
    pair = pair_of("minibatch_sgd", "central", "replace_one", n=20, **how)
    last = pair.certificate()[1]
    seen = pair.transcript(True, 5, Transcript(last=last))[0]
    ratio, _ = one_run(pair, True, 5, last)
    v, s = seen.released.item(), seen.std.item()
    a, b = (np.exp(-0.5 * ((v - mean) / s) ** 2) for mean in (3.0, 5.0))
    assert ratio == pytest.approx(np.log(0.75 + 0.25 * a / b), rel=1e-3)  # sums are on a grid


def test_the_ratio_is_that_of_two_normal_densities():
    pair = pair_of("gradient_descent", "central", "replace_one", rounds=1)
    last = pair.certificate()[1]
    seen = pair.transcript(True, 5, Transcript(last=last))[0]
    ratio, numbers = one_run(pair, True, 5, last)
    a, b, s = seen.exact, -seen.exact, seen.std
    expected = (np.square(seen.released - b) - np.square(seen.released - a)) / (2 * s**2)
    assert ratio == pytest.approx(expected.item(), rel=1e-6)
    assert not numbers.size


def test_a_transcript_changes_no_bit():
    data = dpk.datasets.load_wisconsin(m=3)
    how = {"budget": BUDGET, "rounds": 5, "trust": "silo"}
    stream = dpk.NoiseStream(4)
    stream.audit(Transcript())
    audited = dpk.solve("gradient_descent", data, rng=stream, **how)
    plain = dpk.solve("gradient_descent", data, rng=4, **how)
    np.testing.assert_array_equal(audited.w, plain.w)
    released = sum(release.times for release in audited.privacy.releases)
    assert len(stream.transcript.entries) == released
    assert audited.privacy.noise == "seeded: not private"


def test_no_run_that_is_audited_is_certified_as_private():
    stream = dpk.NoiseStream()
    stream.audit(Transcript())
    data = dpk.datasets.load_wisconsin(m=3)
    run = dpk.solve("gradient_descent", data, rng=stream, budget=BUDGET, rounds=3)
    assert run.privacy.noise == "seeded: not private"


def test_all_runs_of_an_audit_have_one_public_schedule():
    """A paper's noise does not follow the schedule, which the certificate then depends on."""
    how = {"calibration": "paper", "participation": 1, "rounds": 12}
    pair = pair_of("minibatch_sgd", "silo", "replace_one", **how)
    certificate, last = pair.certificate()
    active = [
        [bool(entry.std[0]) and bool(entry.released[0]) for entry in seen]
        for seen in (pair.transcript(True, seed, Transcript(last=last)) for seed in range(4))
    ]
    assert len(active[0]) == 12
    assert active[0] == active[1] == active[2] == active[3]
    assert 0 < sum(active[0]) < 12
    assert {pair.certificate()[0].mu for _ in range(4)} == {certificate.mu}


AUDITED = [
    ("gradient_descent", "central", "replace_one", {}),
    ("minibatch_sgd", "shuffle", "replace_one", {}),
    ("admm", "local", "replace_one", {}),
    ("objective_perturbation", "central", "add_remove", {"rounds": None}),
    ("wd_dp", "silo", "replace_one", {}),
    ("federated_gd", "silo", "replace_one", {"local_steps": 5, "accounting": "last_iterate"}),
]


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "trust", "neighbours", "how"), AUDITED)
def test_true_certificates_stand(name, trust, neighbours, how):
    how = {key: value for key, value in how.items() if value is not None}
    if how.get("accounting") == "last_iterate":
        how |= {"l2": 100.0, "step_size": 1e-3}
    found = dpk.audit(
        name, budget=BUDGET, trust=trust, neighbours=neighbours, how=how, runs=1200, n_jobs=1, rng=1
    )
    assert not found.violated
    assert found.mu_estimate < 1.3 * found.mu_certified
    assert found.mu_estimate > 0.3 * found.mu_certified or name == "objective_perturbation"
    assert found.runs == 1200
    assert f"{name} under {trust} trust" in str(found)


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "trust", "neighbours"), list(offers()))
def test_every_offer_stands(name, trust, neighbours):
    """64 audits of confidence 0.999: one in sixteen such lists is expected to fail by chance."""
    found = dpk.audit(
        name,
        budget=BUDGET,
        trust=trust,
        neighbours=neighbours,
        runs=2000,
        confidence=0.999,
        silos=2 if trust == "silo" else 1,
        n_jobs=1,
        rng=2,
    )
    assert not found.violated


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("sampling", "neighbours"), [("without_replacement", "replace_one"), ("poisson", "add_remove")]
)
def test_secret_samples_are_judged_by_their_trade_off(sampling, neighbours):
    found = dpk.audit(
        "minibatch_sgd",
        budget=dpk.Budget(epsilon=4.0, delta=1e-3),
        neighbours=neighbours,
        how={"sampling": sampling, "batch_size": 5, "rounds": 2},
        records=20,
        runs=1000,
        n_jobs=1,
        rng=1,
    )
    assert found.certificate.amplified
    assert not found.violated
    assert 0.0 < found.mu_certified < found.certificate.mu
    assert found.mu_estimate > 0.3 * found.mu_certified


def test_the_schedule_is_one_in_which_the_record_takes_part():
    found = dpk.audit(
        "admm",
        budget=BUDGET,
        how={"mode": "federated", "participation": 2},
        runs=400,
        n_jobs=1,
        rng=20,
    )
    assert found.mu_estimate > 0.8 * found.mu_certified


@pytest.mark.statistical
def test_half_the_noise_is_found(monkeypatch):
    drawn = kernels.gaussian
    monkeypatch.setattr(kernels, "gaussian", lambda *a, **how: 0.5 * drawn(*a, **how))
    with pytest.warns(CertificateViolatedWarning, match="VIOLATED"):
        found = dpk.audit("gradient_descent", budget=BUDGET, runs=600, n_jobs=1, rng=1)
    assert found.violated
    assert found.tightness > 1.1


@pytest.mark.statistical
def test_the_claim_of_printed_noise_is_refuted():
    """Huang's formula at 32 silos, each of which draws what was meant for the average."""
    found = dpk.audit(
        "federated_gd",
        budget=dpk.Budget(epsilon=1.0, delta=1e-5),
        how={"calibration": "paper"},
        runs=2000,
        silos=32,
        n_jobs=1,
        rng=1,
    )
    assert found.certificate.claimed == {"epsilon": 1.0, "delta": 1e-5}
    assert found.epsilon_lower(1e-5) > 1.0
    assert found.claim_refuted
    assert not found.violated
    bound = f"refuted, epsilon {found.epsilon_lower(1e-5):.4g} at least"
    assert bound in str(found)


@pytest.mark.statistical
def test_a_line_search_without_noise_leaks():
    found = dpk.audit(
        "local_newton",
        budget=dpk.Budget(mu=0.5),
        trust="silo",
        how={"calibration": "paper", "step_size": "paper_search", "floor": 10.0, "rounds": 3},
        runs=1000,
        n_jobs=1,
        rng=1,
    )
    assert not found.certificate.states_something
    assert found.mu_certified == math.inf
    assert found.mu_lower > 1.0
    assert found.claim_refuted
    assert not found.violated
    assert "certified  nothing" in str(found)


@pytest.mark.statistical
def test_own_data():
    data = dpk.datasets.load_wisconsin(m=2)
    X, y = np.asarray(data.transform.apply(data.X)), data.y
    mine = dpk.SiloData(X, y, data.offsets, row_bound=6.0, intercept=True)
    for neighbours in ("replace_one", "add_remove"):
        found = dpk.audit(
            "gradient_descent",
            mine,
            budget=BUDGET,
            neighbours=neighbours,
            how={"clip": 1.0, "rounds": 2, "step_size": 1e-3},
            runs=200,
            n_jobs=1,
            rng=1,
        )
        assert found.mu_estimate == pytest.approx(found.mu_certified, rel=0.5)
    with pytest.raises(ValueError, match="data must be for classification"):
        dpk.audit("gradient_descent", data, budget=BUDGET)


def test_the_picture(tmp_path):
    found = dpk.audit("gradient_descent", budget=BUDGET, runs=100, n_jobs=1, rng=1)
    figure = found.plot(tmp_path / "audit.png")
    assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")
    assert [line.get_label() for line in figure.axes[0].lines[1:]] == [
        "certified",
        "the attack, half of the runs",
        "at most, confidence 0.95",
    ]
    assert f"mu {found.mu_estimate:.4g} +- {found.mu_error:.2g} " in str(found)
    assert "not refuted" in str(found)


@pytest.mark.statistical
def test_the_command(tmp_path, capsys, monkeypatch):
    path = tmp_path / "a.png"
    given = ["audit", "gradient_descent", "--runs", "400", "--jobs", "1", "--seed", "1"]
    more = ["--epsilon", "8", "--set", "rounds=2", "--plot", str(path)]
    assert main([*given, *more]) == 0
    said = capsys.readouterr().out
    assert "certified  mu 1.6" in said
    assert path.exists()
    drawn = kernels.gaussian
    monkeypatch.setattr(kernels, "gaussian", lambda *a, **how: 0.4 * drawn(*a, **how))
    assert main([*given, "--epsilon", "8"]) == 1
    assert "VIOLATED" in capsys.readouterr().out
    monkeypatch.undo()
    silo = [
        "audit",
        "wd_dp",
        "--trust",
        "silo",
        "--silos",
        "2",
        "--runs",
        "200",
        "--jobs",
        "1",
        "--seed",
        "1",
    ]
    assert main(silo) == 0
    assert "under silo trust" in capsys.readouterr().out
    assert main(["audit", "wd_dp", "--trust", "nobody"]) == 2
    assert "--trust must be" in capsys.readouterr().err
    assert main(["audit", "gradient_descent", "--set", "clips=3"]) == 2
    assert "did you mean 'clip'" in capsys.readouterr().err


@for_each(
    ("change", "message"),
    [
        ({"solver": "newton"}, "solver must be one of"),
        ({"runs": 10}, "runs must be at least 100"),
        ({"confidence": 0.3}, "confidence must be in"),
        ({"how": {"rng": 3}}, "TypeError: how must not have 'rng'"),
        ({"how": {"trust": "silo"}}, "TypeError: how must not have 'trust', which is an argument"),
        ({"how": {"budget": None}}, "TypeError: how must not have 'budget'"),
        ({"how": "rounds"}, "TypeError: how must be a dict"),
        ({"how": {"clip": None}}, "TypeError: clip must be a real number"),
        ({"n_jobs": 0}, "n_jobs must be a number of processes"),
        ({"how": {"clips": 3}}, "TypeError: clips"),
        ({"records": 1}, "records"),
        ({"trust": "nobody"}, "trust"),
    ],
)
def test_bad_arguments(change, message):
    how = {"solver": "gradient_descent", "budget": BUDGET, "runs": 100} | change
    assert_refused(message, dpk.audit, how.pop("solver"), **how)


def test_others_of_a_secret_sample_are_as_long_as_the_record():
    how = {"sampling": "without_replacement", "clip": 0.5, "rounds": 1}
    where = {"trust": "central", "neighbours": "replace_one", "n": 6, "m": 2}
    _, outside, _ = worst_pair("minibatch_sgd", **where, how=how)
    assert len(np.unique(outside.transform.apply(outside.X))) == 1
