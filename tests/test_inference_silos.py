"""Standard errors over silos, each of which trusts itself alone, and of sums with shared noise."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy
from cases import few_seeds, for_each
from makers import BUDGET, ratios, same
from test_inference import LOSSES, SCHEMA, extremes, moved, people, records, replay

import dpkern as dpk
from dpkern.privacy.certificate.ledger import Ledger
from dpkern.privacy.mechanisms.channel import SEEN_BY, Channel, Shares
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.privacy.mechanisms.hessian import GaussianHessian

__all__ = ["replay"]  # a fixture
TRUTH = (-0.3, 0.8, 0.15, -0.5)  # of `records`, the intercept first
SIZES = (8000, 20_000, 5000)
# One of every kind of sums: the others have those of labels or of counts.
NAMES = ["logistic", "huber", "squared", "poisson"]
each_loss = for_each("name", NAMES)


def silos(name="logistic", sizes=SIZES, seed=0, **options):
    X, y = records(name, n=sum(sizes), seed=seed)
    return in_silos(name, X, y, sizes, **options)


def in_silos(name, X, y, sizes, **options):
    task = {"task": "classification", "classes": (-1.0, 1.0)}
    if name != "logistic":
        task = {"task": "regression", "target_bound": 3.0}
    options = {"intercept": True, "feature_range": (-1.0, 1.0)} | task | options
    return dpk.SiloData(X, y, np.cumsum([0, *sizes]), **options)


def fit(data, name="logistic", **how):
    how = {"budget": BUDGET, "rng": 0, "loss": LOSSES[name], "trust": "silo"} | how
    return dpk.solve("auto", data, inference=True, **how)


def alone(data, j):
    first, end = data.offsets[j : j + 2].tolist()
    return data.part(slice(first, end), np.array([0, end - first]))


# --------------------------------------------------------------------- what is estimated


@each_loss
@for_each("intercept", [True, False])
def test_one_call_is_the_meta_analysis_of_fits_of_each_silo(name, intercept):
    data = silos(name, intercept=intercept or name == "poisson")  # which needs one
    result = fit(data, name, budget=None)
    each = [fit(alone(data, j), name, budget=None, trust="central") for j in range(3)]
    contrasts = {"x0 for x1": {"x0": 1.0, "x1": -1.0}}
    for how in ({}, {"level": 0.9, "contrasts": contrasts}):
        rows, expected = result.summary(**how), dpk.meta_analysis(each, **how)
        assert type(rows) is type(expected)
        for row, other in zip(rows, expected, strict=True):
            assert row[0] == other[0]
            assert row[1:] == pytest.approx(other[1:], rel=1e-6, nan_ok=True)


@for_each("budget", [None, BUDGET])
@for_each("of_schema", [False, True])
def test_the_model_has_the_pooled_coefficients_and_their_covariance(of_schema, budget):
    if of_schema:
        table = people()
        data = SCHEMA.silo_data(table, 2)
    else:
        data = silos()
    result = fit(data, budget=budget)
    rows = result.summary()
    names, M = dpk.solvers.base.inference.in_units(result)
    assert [row.name for row in rows] == names
    np.testing.assert_allclose(M @ result.w, [row.estimate for row in rows], rtol=1e-8)
    for found, values in (
        (result.inference.covariance, [row.std_error for row in rows]),
        (result.inference.noise, [row.noise_std for row in rows]),
    ):
        stds = np.sqrt(np.diag(M @ found @ M.T))
        np.testing.assert_allclose(stds, values, rtol=1e-8, atol=1e-12)


def test_a_single_silo_has_the_estimates_of_central_trust():
    """Its rows are in units of C, with the same draws of noise."""
    for name in NAMES:
        data = silos(name, sizes=(20_000,))
        ours, central = fit(data, name), fit(data, name, trust="central")
        np.testing.assert_allclose(ours.w, central.w, atol=1e-4)
        errors = np.sqrt(np.diag(central.inference.covariance))
        for part in ("covariance", "noise", "lost"):  # entries near 0 beside those of the diagonal
            values = [getattr(one.inference, part) for one in (ours, central)]
            values = [value / np.outer(errors, errors) for value in values]
            np.testing.assert_allclose(*values, rtol=0.0, atol=1e-4)
        assert not ours.inference.silos
        assert ours.privacy.mu == pytest.approx(central.privacy.mu, rel=1e-9)


def test_small_and_different_silos_are_treated_as_in_a_meta_analysis():
    X, y = records("logistic", n=28_300)
    y[8000:28_000] = -y[8000:28_000]
    result = fit(in_silos("logistic", X, y, (8000, 20_000, 300)))
    rows = result.summary()
    assert all(row.silos == 2 for row in rows)
    assert rows[1].q_p_value < 1e-6
    assert rows[1].tau > 0.5
    assert "left out" in " ".join(rows.notes)
    few = fit(in_silos("logistic", X[:100], y[:100], (50, 50)))
    assert all(math.isnan(row.std_error) for row in few.summary())
    assert np.isfinite(few.w).all()


def test_every_silo_has_the_bound_of_its_own_number_of_records():
    data = silos(sizes=(8000, 20_000, 300))
    clips = fit(data).parameters["clip"]
    each = [fit(alone(data, j), trust="central").parameters["clip"] for j in range(3)]
    assert clips == each
    assert len(set(clips)) == 3
    assert fit(silos(sizes=(900, 900))).parameters["clip"] == math.sqrt(6.0)
    assert fit(data, clip=3.0).parameters["clip"] == 3.0
    how = {"neighbours": "add_remove", "public_size": [8000, 20_000, 300]}
    clips = fit(data, **how).parameters["clip"]
    how = {"neighbours": "add_remove", "trust": "central"}
    each = [fit(alone(data, j), public_size=n, **how) for j, n in enumerate((8000, 20_000, 300))]
    assert clips == [one.parameters["clip"] for one in each]


def test_a_result_survives_a_file_and_is_shown(tmp_path):
    result = fit(silos())
    result.save(tmp_path / "model.npz")
    read = dpk.load(tmp_path / "model.npz")
    assert read == result
    assert read.inference == result.inference
    assert dpk.verify(tmp_path / "model.npz").ok
    assert str(read.summary()) == str(result.summary())
    assert "p of Q" in str(read)
    assert "I^2" in result._repr_html_()
    assert "combined by fixed-effect meta-analysis" in result.methods()
    other = dpk.meta_analysis([result, fit(silos(seed=1), rng=1)])
    assert other[1].std_error < result.summary()[1].std_error


@pytest.mark.statistical
@each_loss
def test_pooled_intervals_cover_and_q_is_chi_squared(name):
    """Of 200 draws of three silos, of which the smallest has few records."""
    z, p, truth, sizes, budget = [], [], TRUTH, (12_000, 6000, 4000), BUDGET
    if name == "poisson":  # whose noise is larger, and whose means are half of exp(x.w)
        truth, sizes = (TRUTH[0] - math.log(2.0), *TRUTH[1:]), (24_000, 12_000, 8000)
        budget = dpk.Budget(epsilon=4.0, delta=1e-6)
    for k in range(200):
        rows = fit(silos(name, sizes, seed=k), name, rng=k, budget=budget).summary()
        z.append([(row.estimate - v) / row.std_error for row, v in zip(rows, truth, strict=True)])
        p.append(rows[2].q_p_value)
    covered = np.abs(z) <= 1.96
    assert 0.93 <= covered.mean() <= 0.98
    assert covered.mean(axis=0).min() >= 0.90
    assert scipy.stats.kstest(p, "uniform").pvalue > 1e-3


@pytest.mark.statistical
def test_intervals_cover_where_silos_share_the_noise():
    z = []
    for k in range(200):
        data = silos(sizes=(3000, 2000, 1000), seed=k)
        rows = fit(data, trust="central", colluding=1, rng=k).summary()
        z.append([(row.estimate - v) / row.std_error for row, v in zip(rows, TRUTH, strict=True)])
    assert 0.93 <= (np.abs(z) <= 1.96).mean() <= 0.975


# ---------------------------------------------------------------------- what is released


@few_seeds(6, 40)
@each_loss
@pytest.mark.parametrize("neighbours", ["replace_one", "add_remove"])
@pytest.mark.parametrize("how", [{}, {"trust": "central", "colluding": 1}], ids=["silo", "shares"])
def test_a_record_moves_the_sums_of_its_own_silo_alone(replay, name, neighbours, how, seeds):
    """By no more than is charged, at the same released numbers, in rational arithmetic."""
    made, replayed = replay
    how = {**how, "row_bound": 1.5}
    bound = {"row_bound": how.pop("row_bound"), "feature_range": None}
    sizes, largest = (25, 2, 33), {}
    if neighbours == "add_remove":
        how |= {"neighbours": neighbours, "public_size": list(sizes)}
    for seed in seeds:
        rng = np.random.default_rng(seed)
        X, y = records(name, n=60, seed=seed)
        i, cuts = int(rng.integers(60)), np.cumsum([0, *sizes])
        j = int(np.searchsorted(cuts, i, side="right")) - 1
        X[i], y[i], *_ = extremes(name, X.shape[1], rng)
        other_X, other_y, less = X.copy(), y.copy(), list(sizes)
        other_X[i], other_y[i], *_ = extremes(name, X.shape[1], rng)
        if neighbours == "add_remove":
            other_X, other_y = np.delete(X, i, axis=0), np.delete(y, i)
            less[j] -= 1
        budget, sums = dpk.Budget(mu=10.0 ** rng.uniform(-1.0, 0.7)), []
        replayed.clear()
        for rows, targets, of in ((X, y, sizes), (other_X, other_y, less)):
            made.clear()
            fit(in_silos(name, rows, targets, of, **bound), name, budget=budget, rng=seed, **how)
            sums.append(list(made))
            replayed[:] = [released for *_, released in sums[0]]
        for (what, total, sensitivity, _), (_, other, _, _) in zip(*sums, strict=True):
            assert len(total) == 3
            for k in range(3):
                share = moved(total[k], other[k]) / Fraction(sensitivity) ** 2
                assert share <= (k == j), what
                largest[what] = max(largest.get(what, 0), share)
    # Of counts a curvature is as large as is charged at the largest mean alone.
    least = Fraction(1, 5000 if name == "poisson" else 200)
    assert len(seeds) < 40 or all(share > least for share in largest.values()), largest


@each_loss
@for_each("neighbours", ["replace_one", "add_remove"])
def test_every_silo_is_charged_what_its_run_alone_is(name, neighbours):
    data, how, of = silos(name, sizes=(400, 500, 300)), {}, {}
    if neighbours == "add_remove":
        how, of = ({"neighbours": neighbours, "public_size": n} for n in ([350] * 3, 350))
    certificate = fit(data, name, **how).privacy
    assert dpk.verify(certificate.to_dict()).ok
    expected = fit(alone(data, 0), name, **of).privacy
    assert [r.what for r in certificate.releases] == [r.what for r in expected.releases]
    assert [r.times for r in certificate.releases] == [r.times for r in expected.releases]
    for j in range(3):
        mu = math.sqrt(sum(ratio**2 for ratio in ratios(certificate.releases, j)))
        assert mu == pytest.approx(BUDGET.mu, rel=1e-9)
    assert certificate.mu == pytest.approx(expected.mu, rel=1e-9)


@for_each("what", ["scores", "curvatures", "squared scores", "whitened rows"])
def test_a_certificate_with_half_of_a_sensitivity_is_refused(what):
    stated = fit(silos(sizes=(400, 500, 300))).privacy.to_dict()
    for release in stated["releases"]:
        if release["what"].endswith(f" {what}"):
            release["sensitivity"][1] *= 0.5
    found = dpk.verify(stated)
    assert not found.ok
    assert f"sensitivity of 'inference: sum of {what}'" in str(found) or what != "scores"


def test_an_accountant_is_charged_once_for_all_silos(tmp_path):
    accountant = dpk.Accountant(tmp_path / "ledger", epsilon=1.0, delta=1e-5)
    result = fit(silos(sizes=(400, 500, 300)), accountant=accountant, rng=None)
    assert len(accountant.entries) == 1
    assert result.privacy.epsilon(1e-5) <= 1.0
    with pytest.raises(ValueError, match="weights must be 'size'"):
        fit(silos(sizes=(400, 500, 300)), weights="uniform")


@for_each("outer", [False, True])
def test_standard_errors_hold_the_noise_of_all_shares(outer):
    """Of those that collude too, which the certificate leaves out."""
    channel = Channel(Ledger(), dpk.NoiseStream(1), SEEN_BY["central"], shares=Shares(4, 2))
    how = {"what": "sum", "dim": 40, "sizes": (400,), "mu": 0.5}
    if outer:
        mechanism = GaussianHessian(channel, hess_clip=1.0, **how)
        noise = np.diag(mechanism.release(np.zeros((4, 40, 40)))[0])
    else:
        mechanism = GaussianSum(channel, clip=1.0, **how)
        noise = mechanism.release(np.zeros((4, 40)))
    assert mechanism.noise_std == pytest.approx(math.sqrt(2.0) * mechanism._entry.std, rel=1e-6)
    assert 0.7 < np.std(noise) / mechanism.noise_std < 1.3


def test_a_federation_has_the_standard_errors_of_one_process():
    pytest.importorskip("cryptography")
    from studies import study_of, wisconsin
    from test_studies import run

    from dpkern.federated.proposal import Proposal
    from dpkern.federated.rehearsal import rehearsed

    data = wisconsin()
    for trust, how in (("central", {"colluding": 1}), ("silo", {})):
        arguments = {"budget": dpk.Budget(epsilon=1.0, delta=1e-5), "rng": 7, "trust": trust}
        expected = dpk.solve("auto", data, inference=True, **arguments, **how)
        result, outcomes = run(data, "auto", study=study_of(data, trust), inference=True)
        plan = Proposal("newton_inference", arguments["budget"], {"trust": trust})
        assert rehearsed(study_of(data, trust), plan).mu == pytest.approx(expected.privacy.mu)
        for found in (result, *outcomes):
            assert same(found, expected)
            assert found.inference == expected.inference
            assert found.history == expected.history
