"""Releases, composition and certificates, recomputed independently."""

import itertools
import json
import math
import re
from dataclasses import replace
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from cases import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from makers import assert_refused

from dpkern.privacy import (
    Certificate,
    Release,
    compose_parallel,
    compose_sequential,
    gdp_delta,
    gdp_epsilon,
)
from dpkern.privacy.certificate import composition
from dpkern.privacy.certificate.ledger import Ledger
from dpkern.privacy.certificate.serialization import digest
from dpkern.privacy.guarantees.gdp import GaussianDP
from dpkern.privacy.guarantees.selection import Selection

positive = st.floats(1e-100, 1e100)
grids = st.integers(-400, 400).map(lambda e: 2.0**e)


def a_release(**changes):
    fields = {
        "what": "gradient",
        "sensitivity": 2.0,
        "std": 8.0,
        "grid": 2.0**-20,
        "times": 1,
        "dim": 10,
        "seen_by": "everyone",
    }
    return Release(**(fields | changes))


def a_ledger(*releases):
    ledger = Ledger()
    for release in releases:
        ledger.append(release)
    return ledger


def unfolded(certificate):
    """The printed certificate with its folded lines as one again."""
    return re.sub(r"\n {14}(?=\S)", " ", str(certificate))


def a_certificate(*releases, **changes):
    fields = {"trust": "central", "noise": "os"}
    return Certificate.from_ledger(a_ledger(*(releases or [a_release()])), **(fields | changes))


def gaussian(mu, draws, **changes):
    """A certificate of this mu and number of draws, without its releases."""
    fields = {"trust": "central", "noise": "os", "guarantee": GaussianDP(mu=mu)}
    return Certificate(**fields, n_draws=draws, **changes)


@st.composite
def release_lists(draw, m=3):
    releases = []
    for number in range(draw(st.integers(0, 4))):
        times, dim = draw(st.integers(1, 10**6)), draw(st.integers(1, 10**6))
        if draw(st.booleans()):
            values = {"sensitivity": draw(positive), "std": draw(positive), "grid": draw(grids)}
        else:
            values = {
                name: tuple(draw(st.lists(kind, min_size=m, max_size=m)))
                for name, kind in (
                    ("sensitivity", st.just(0.0) | positive),
                    ("std", positive),
                    ("grid", grids),
                )
            }
        releases.append(a_release(what=f"release {number}", times=times, dim=dim, **values))
    return releases


def independent_mu(releases, m):
    """mu by the definition: the silo that pays most. Terms may be 10^800 apart."""
    with mp.workdps(1000):
        totals = [mp.mpf(0)] * m
        for r in releases:
            for j in range(m):
                d = r.sensitivity[j] if isinstance(r.sensitivity, tuple) else r.sensitivity
                s = r.std[j] if isinstance(r.std, tuple) else r.std
                totals[j] += r.times * (mp.mpf(d) / mp.mpf(s)) ** 2
        return mp.sqrt(max(totals))


@settings(max_examples=200, deadline=None)
@given(releases=release_lists())
def test_mu_is_the_root_of_the_largest_silo_total_rounded_up(releases):
    mu = a_certificate(a_release(sensitivity=0.0), *releases).mu
    exact = independent_mu(releases, 3)
    with mp.workdps(1000):
        assert mp.mpf(mu) >= exact * (1 - mp.mpf(10) ** -990)
        if 0 < mu < math.inf:
            assert mp.mpf(math.nextafter(mu, 0.0)) < exact


@settings(max_examples=100, deadline=None)
@given(releases=release_lists())
def test_draws_count_every_coordinate_of_every_noisy_message(releases):
    expected = sum(
        r.times
        * r.dim
        * (sum(d > 0 for d in r.sensitivity) if isinstance(r.sensitivity, tuple) else 1)
        for r in releases
    )
    assert a_ledger(*releases).n_draws == expected


@settings(max_examples=60, deadline=None)
@given(
    coins=st.lists(st.integers(10**5, 10**9), min_size=1, max_size=3),
    sensitivity=st.floats(1.0, 30.0),
    std=st.floats(0.1, 100.0),
    times=st.integers(1, 1000),
)
def test_mu_of_coins_is_the_smallest_double_that_is_enough(coins, sensitivity, std, times):
    releases = [
        a_release(what=str(i), sensitivity=sensitivity, std=math.sqrt(n) / 2, grid=1.0, coins=n)
        for i, n in enumerate(coins)
    ]
    releases.append(a_release(std=std, times=times))
    certificate = a_certificate(*releases)
    exact = a_ledger(*releases).mu_squared()
    assert Fraction(certificate.mu) ** 2 >= exact
    assert Fraction(math.nextafter(certificate.mu, 0.0)) ** 2 < exact
    assert exact >= times * (Fraction(2.0) / Fraction(std)) ** 2
    both = compose_sequential(certificate, a_certificate(a_release(std=std)))
    assert Fraction(both.mu) ** 2 >= exact + (Fraction(2.0) / Fraction(std)) ** 2


@settings(max_examples=100, deadline=None)
@given(squares=st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_mu_of_perfect_squares_is_exact(squares):
    # Releases with mu^2 = n, n, ...; the total is made a square by one more.
    total = sum(squares)
    root = math.isqrt(total) + 1
    rest = root * root - total
    releases = [a_release(what=str(i), std=2.0, times=n) for i, n in enumerate([*squares, rest])]
    assert a_certificate(*releases).mu == root


def test_equal_releases_become_one_entry_with_more_times():
    ledger = a_ledger(*[a_release()] * 3, a_release(what="Hessian"), a_release(times=1))
    assert [(r.what, r.times) for r in ledger] == [("gradient", 4), ("Hessian", 1)]
    assert len(ledger) == 2
    assert ledger.n_draws == 50
    assert ledger.mu_squared() == 5 * Fraction(1, 16)


def test_series_that_a_record_has_a_limited_part_in_add_up():
    """The same record may be in both, so two series of equal releases are not one."""
    one, other = a_release(per_record=2), a_release(per_record=2)
    assert one == other
    assert a_ledger(*[one] * 5).mu_squared() == 2 * Fraction(1, 16)
    ledger = a_ledger(*[one, other] * 5)
    assert ledger.mu_squared() == 4 * Fraction(1, 16)
    assert [release.times for release in ledger] == [5, 5]


def test_a_series_costs_its_costliest_releases_of_each_silo():
    """Against all subsets of as many releases as depend on one record."""
    rng = np.random.default_rng(0)
    for _ in range(30):
        most, times = int(rng.integers(1, 5)), rng.integers(1, 3, 3)
        D, s = rng.uniform(0.5, 2.0, (2, 3, 2))
        series = [
            a_release(
                sensitivity=tuple(a), std=tuple(b), grid=(1.0, 1.0), per_record=most, series=7
            )
            for a, b in zip(D.tolist(), s.tolist(), strict=True)
        ]
        common = int(rng.integers(4))  # one about all the data, or none
        if common < 3:
            D[common], s[common] = D[common, 0], s[common, 0]
            series[common] = a_release(
                sensitivity=D[common, 0], std=s[common, 0], per_record=most, series=7
            )
        ledger = a_ledger(*[r for r, n in zip(series, times, strict=True) for _ in range(n)])
        rounds = [k for k, n in enumerate(times) for _ in range(n)]
        expected = max(
            sum((Fraction(D[k, j]) / Fraction(s[k, j])) ** 2 for k in chosen)
            for j in range(2)
            for chosen in itertools.combinations(rounds, min(most, len(rounds)))
        )
        assert ledger.mu_squared() == expected
        assert [r.times for r in ledger.releases] == times.tolist()
        for release in ledger.releases:
            assert Release.from_dict(release.to_dict()) == release
    assert f"each record in at most {most} of series 7" in str(series[0])


def test_series_have_numbers_of_their_own_and_a_cap():
    ledger = Ledger()
    assert len({ledger.new_series() for _ in range(5)}) == 5
    unlimited = a_release(std=None, grid=None, per_record=1, series=1)
    assert a_ledger(unlimited, a_release(per_record=1, series=1)).mu_squared() is None


def test_disjoint_silos_cost_the_largest_and_common_releases_cost_all():
    per_silo = a_release(sensitivity=(1.0, 2.0), std=(1.0, 1.0), grid=(1.0, 1.0))
    other = a_release(sensitivity=(3.0, 0.0), std=(1.0, 1.0), grid=(1.0, 1.0))
    common = a_release(sensitivity=1.0, std=1.0)
    assert a_ledger(per_silo).mu_squared() == 4
    assert a_ledger(per_silo, other).mu_squared() == 10
    assert a_ledger(per_silo, common).mu_squared() == 5


@for_each(("times", "per_record", "paid"), [(10, 3, 3), (2, 3, 2), (3, None, 3)])
def test_a_record_pays_for_the_releases_that_it_has_a_part_in(times, per_record, paid):
    release = a_release(times=1, per_record=per_record)
    ledger = a_ledger(*[release] * times)
    (entry,) = ledger.releases
    assert entry.times == times
    assert ledger.mu_squared() == paid * release.mu_squared()[0]
    assert entry.n_draws == times * release.n_draws
    assert Release.from_dict(entry.to_dict()) == entry
    assert ("each record in at most 3" in str(entry)) == (per_record is not None)


def test_the_text_of_a_release_shows_its_fields_and_nothing_else():
    common = a_release(sensitivity=2.5, std=7.0, grid=0.125, times=3, dim=11)
    assert str(common) == (
        "gradient: 3 x 11 coordinates, sensitivity 2.5, noise std 7, grid 0.125, seen by everyone"
    )
    each = a_release(sensitivity=(1.0, 2.0), std=(3.0, 5.0), grid=(0.25, 0.5))
    assert "from each of 2 silos, sensitivity 1 to 2, noise std 3 to 5, grid 0.25 to 0.5" in str(
        each
    )
    counts = a_release(sensitivity=9.0, std=20.0, grid=1.0, coins=1600)
    assert "sensitivity 9, binomial noise of 1600 coins, std 20, grid 1" in str(counts)
    assert str(common) in " ".join(str(a_certificate(common)).split())
    many = " ".join(str(a_certificate(*(a_release(std=s) for s in (6.0, 7.0, 8.0, 9.0)))).split())
    assert "4 x 10 coordinates, sensitivity 2, noise std 6 to 9, grid 9.53674e-07" in many


def test_nothing_released_costs_nothing():
    certificate = Certificate.from_ledger(Ledger(), trust="central", noise="os")
    assert certificate.mu == certificate.rho == certificate.delta(0.0) == 0.0
    assert certificate.epsilon(1e-300) == 0.0


@for_each(
    "release",
    [
        a_release(std=None),
        a_release(std=0.0),
        a_release(sensitivity=math.inf, std=None, grid=None),
        a_release(sensitivity=(1.0, 1.0), std=(1.0, 0.0), grid=(1.0, 1.0)),
        a_release(sensitivity=(1.0, 1.0), std=None, grid=None),
    ],
)
def test_a_release_without_noise_leaves_no_guarantee(release):
    certificate = a_certificate(a_release(), release)
    assert certificate.mu == certificate.rho == certificate.epsilon(0.5) == math.inf
    assert certificate.delta(100.0) == 1.0
    assert any("no guarantee" in note for note in certificate.notes)
    assert "guarantee   none: epsilon is infinite at every delta\n" in str(certificate)
    assert " at delta " not in str(certificate)


def test_a_silo_that_sent_nothing_pays_nothing():
    silent = a_release(sensitivity=(0.0, 2.0), std=(0.0, 2.0), grid=(1.0, 1.0))
    assert silent.mu_squared() == (0, 1)
    assert silent.n_draws == 10


def test_noise_without_a_grid_states_no_guarantee_whatever_the_caller_says():
    for releases in ([a_release(grid=None)], [a_release(), a_release(grid=None)]):
        certificate = Certificate.from_ledger(a_ledger(*releases), trust="central", noise="os")
        assert (certificate.arithmetic, certificate.mu) == ("float", math.inf)


def test_float_arithmetic_states_no_guarantee():
    certificate = a_certificate(arithmetic="float")
    assert certificate.mu == math.inf
    assert any("float arithmetic" in note for note in certificate.notes)
    assert_refused("mu must be inf with arithmetic 'float'", gaussian, 1, 1, arithmetic="float")


def test_a_seeded_stream_keeps_the_figures_and_says_so_first():
    fresh, seeded = a_certificate(), a_certificate(noise="seeded: not private")
    assert seeded.mu == fresh.mu
    assert str(seeded).splitlines()[1].strip().startswith("seeded: not private")
    assert "seeded" not in str(fresh)


def test_sampling_is_charged_as_full_composition():
    sampling = {"kind": "without_replacement", "batch": 5, "population": (10, 20)}
    certificate = a_certificate(a_release(sampling=sampling))
    assert certificate.mu == a_certificate().mu
    assert certificate.bound == "upper"
    assert any("sampling" in note for note in certificate.notes)
    assert dict(certificate.releases[0].sampling) == sampling


# The correction: with probability 2^-100 per draw the noise is another, under both data sets.
@settings(max_examples=100, deadline=None)
@given(mu=st.floats(0.01, 8.0), epsilon=st.floats(0.0, 20.0), draws=st.integers(1, 2**60))
def test_delta_carries_the_sampler_error_of_every_draw(mu, epsilon, draws):
    certificate = gaussian(mu, draws)
    stated = gdp_delta(mu, epsilon) + (1.0 + math.exp(epsilon)) * draws * 2.0**-100
    value = certificate.delta(epsilon)
    assert value <= min(1.0, stated) * (1 + 1e-11)
    assert value >= min(1.0, gdp_delta(mu, epsilon)) * (1 - 1e-11)
    # where the error is small the stated sum itself is the smallest
    if mp.ncdf(-epsilon / mu - mu / 2) > draws * 2.0**-100:
        assert value >= min(1.0, stated) * (1 - 1e-11)
    # Otherwise the value of a smaller epsilon is taken: it is the smallest of the stated sums.
    smaller = np.linspace(0.0, epsilon, 50)
    sums = [gdp_delta(mu, e) + (1.0 + math.exp(e)) * draws * 2.0**-100 for e in smaller]
    assert value <= min(1.0, *sums) * (1 + 1e-11)


@settings(max_examples=60, deadline=None)
@given(mu=st.floats(0.01, 8.0), exponent=st.floats(-40.0, -0.01), draws=st.integers(0, 2**60))
def test_epsilon_inverts_the_corrected_delta(mu, exponent, draws):
    delta = 10.0**exponent
    certificate = gaussian(mu, draws)
    epsilon = certificate.epsilon(delta)
    if epsilon == math.inf:
        # even the smallest corrected delta over all epsilon is too large
        assert certificate.delta(1e4) > delta
    else:
        assert certificate.delta(epsilon) <= delta
        assert epsilon >= gdp_epsilon(mu, delta)
        assert epsilon == 0.0 or certificate.delta(epsilon * (1 - 1e-10)) > delta


@settings(max_examples=60, deadline=None)
@given(
    mu=st.floats(0.01, 30.0),
    draws=st.integers(0, 2**99),
    epsilon=st.floats(0.0, 800.0),
    step=st.floats(0.0, 100.0),
)
def test_corrected_delta_never_rises_with_epsilon(mu, draws, epsilon, step):
    certificate = gaussian(mu, draws)
    low, high = certificate.delta(epsilon), certificate.delta(epsilon + step)
    assert 0.0 <= high <= low * (1 + 1e-11) <= 1.0 + 1e-11


def test_a_delta_below_the_sampler_error_has_no_epsilon_and_the_text_says_why():
    certificate = a_certificate(at_delta=1e-40)
    assert certificate.epsilon(1e-40) == math.inf
    assert certificate.epsilon(1e-20) < 4.0
    assert "too small a delta" in unfolded(certificate)


@settings(max_examples=60, deadline=None)
@given(mu=st.floats(1e-6, 1e6), r=st.integers(1, 10**6))
def test_a_group_of_r_records_has_r_times_mu_rounded_up(mu, r):
    group = gaussian(mu, 7).group(r)
    assert Fraction(group.mu) >= r * Fraction(mu) > Fraction(math.nextafter(group.mu, 0.0))
    assert group.n_draws == 7
    assert group.unit == ("one record" if r == 1 else f"one person with {r} records")


def test_a_group_of_a_group_is_refused():
    assert_refused("unit must be 'one record' for a group", a_certificate().group(2).group, 2)
    assert_refused("r must be at least 1", a_certificate().group, 0)


certificates = st.builds(
    Certificate,
    trust=st.sampled_from(["central", "silo"]),
    noise=st.sampled_from(["os", "seeded: not private"]),
    guarantee=st.builds(GaussianDP, mu=st.floats(0.0, 1e100)),
    n_draws=st.integers(0, 10**12),
    bound=st.sampled_from(["exact", "upper"]),
)


@settings(max_examples=100, deadline=None)
@given(runs=st.lists(certificates, min_size=1, max_size=4))
def test_sequential_composition_adds_mu_squared_and_draws(runs):
    total = compose_sequential(*runs)
    exact = sum(Fraction(c.mu) ** 2 for c in runs)
    assert Fraction(total.mu) ** 2 >= exact
    assert total.mu == 0.0 or Fraction(math.nextafter(total.mu, 0.0)) ** 2 < exact
    assert total.n_draws == sum(c.n_draws for c in runs)
    assert compose_sequential(*reversed(runs)).mu == total.mu
    _is_as_weak_as_the_weakest(total, runs)


@settings(max_examples=100, deadline=None)
@given(runs=st.lists(certificates, min_size=1, max_size=4))
def test_parallel_composition_takes_the_largest(runs):
    total = compose_parallel(*runs)
    assert total.mu == max(c.mu for c in runs)
    assert total.n_draws == max(c.n_draws for c in runs)
    _is_as_weak_as_the_weakest(total, runs)


def _is_as_weak_as_the_weakest(total, runs):
    assert (total.noise == "os") == all(c.noise == "os" for c in runs)
    assert (total.bound == "exact") == all(c.bound == "exact" for c in runs)
    assert set(total.trust.split(" + ")) == {c.trust for c in runs}
    for c in runs:
        assert c.adversary in total.adversary
    assert "composition" in total.notes[0]


def test_composition_keeps_what_each_run_declared():
    a = a_certificate(declared={"clip": 1.0}, notes=["first"])
    b = a_certificate(declared={"clip": 2.0}, notes=["second"])
    assert compose_sequential(a, a).declared == {"clip": 1.0}
    both = compose_sequential(a, b)
    assert both.declared == {"run 1": {"clip": 1.0}, "run 2": {"clip": 2.0}}
    text = unfolded(both) + "\n"
    assert "run 1: clip 1.0 run 2: clip 2.0\n" in text
    assert text.count("coordinates") == 1
    assert "(2 runs)" in text
    assert both.releases == a.releases + b.releases
    assert both.notes[1:] == ("first", "second")


def test_a_result_in_place_of_its_certificate_is_refused():
    for compose in (compose_sequential, compose_parallel):
        with pytest.raises(TypeError, match="must be given one after another, each a Certificate"):
            compose(a_certificate(), object())


def test_sums_of_different_silos_maxima_are_an_upper_bound():
    first = a_certificate(a_release(sensitivity=(1.0, 2.0), std=(1.0, 1.0), grid=(1.0, 1.0)))
    second = a_certificate(a_release(sensitivity=(2.0, 1.0), std=(1.0, 1.0), grid=(1.0, 1.0)))
    assert first.bound == "exact"
    assert compose_sequential(first, second).bound == "upper"


def test_composition_with_a_run_without_guarantee_has_none():
    for compose in (compose_sequential, compose_parallel):
        total = compose(a_certificate(), a_certificate(arithmetic="float"))
        assert total.mu == math.inf
        assert total.arithmetic == "float"


def test_certificates_about_different_units_do_not_compose():
    with pytest.raises(ValueError, match="unit must be one for all certificates"):
        compose_sequential(a_certificate(), a_certificate().group(2))
    with pytest.raises(ValueError, match="neighbours must be one for all"):
        compose_parallel(a_certificate(), a_certificate(neighbours="add_remove"))
    assert_refused("certificates must hold at least one", compose_sequential)
    assert_refused("certificates must hold at least one", compose_parallel)


def through_json(certificate):
    text = json.dumps(certificate.to_dict(), allow_nan=False)
    return Certificate.from_dict(json.loads(text))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(
    releases=release_lists(),
    declared=st.dictionaries(st.text(max_size=5), values, max_size=3),
    claimed=st.none() | st.just({"epsilon": 0.1, "delta": 1e-5}),
    unnoised=st.booleans(),
)
def test_certificates_survive_json_bit_for_bit(releases, declared, claimed, unnoised):
    if unnoised:
        releases.append(a_release(sensitivity=math.inf, std=None, grid=None))
    releases.append(a_release(sampling={"kind": "poisson", "rate": 0.1}, draws=3))
    certificate = a_certificate(*releases, declared=declared, claimed=claimed, notes=["a", "b"])
    again = through_json(certificate)
    assert again == certificate
    assert repr(again) == repr(certificate)
    assert str(again) == str(certificate)


def test_numpy_values_are_declared_as_plain_python():
    declared = {"clip": np.float32(0.1), "sizes": np.arange(3), "flag": np.bool_(True)}
    certificate = a_certificate(declared=declared)
    assert certificate.declared == {
        "clip": float(np.float32(0.1)),
        "sizes": (0, 1, 2),
        "flag": True,
    }
    assert through_json(certificate) == certificate


def test_stored_certificates_with_wrong_fields_are_refused():
    stored = a_certificate().to_dict()

    def edited(**changes):
        values = {k: v for k, v in (stored | changes).items() if v != "gone"}
        return Certificate.from_dict(values | {"digest": digest(values)})

    assert edited() == a_certificate()
    for changes, message in (
        ({"unit": "gone"}, "missing fields \\['unit'\\]"),
        ({"sigma": 1.0}, "unknown fields \\['sigma'\\]"),
        ({"n_draws": -1}, r"n_draws must .*got -1"),
        ({"version": 1}, "version must be 2, the one that this release of dpkern reads, got 1"),
        ({"format": "another"}, "values must be a certificate"),
        (
            {"guarantee": stored["guarantee"] | {"law": {"name": "new"}}},
            "law must be 'concentrated' or 'gaussian' or 'objective",
        ),
    ):
        assert_refused(message, edited, **changes)
    with pytest.raises(ValueError, match=r"digest must be .* it has been edited"):
        Certificate.from_dict(stored | {"n_draws": 5})
    assert_refused("values must be a certificate", Certificate.from_dict, [stored])


def test_text_shows_every_field():
    certificate = a_certificate(
        a_release(sensitivity=(2.0, 2.0), std=(8.0, 16.0), grid=(1.0, 1.0), times=5),
        trust="silo",
        declared={"row_bound": 1.5},
        claimed={"epsilon": 0.25, "delta": 1e-5},
        notes=["the split is by label"],
        model=f"sha256:{'0' * 64}",
        started="2026-11-27T09:30:00Z",
        sources={"row_bound": "not stated", "labels": "not stated"},
    ).with_names(study="a study", purpose="a purpose", controller="a clinic", bounds="handbook")
    text = unfolded(certificate)
    for part in (
        "silo",
        "sees every message of every silo",
        "one record",
        "replace_one",
        "5 x 10 coordinates from each of 2 silos",
        "noise std 8 to 16",
        "row_bound 1.5",
        "epsilon 0.25, delta 1e-05; true: epsilon",
        "the split is by label",
        "os, 100 draws",
        "grid",
        "row bound, labels: handbook",
        "a study",
        "a purpose",
        "a clinic",
        f"sha256:{'0' * 32}...",
        "2026-11-27T09:30:00Z",
        "of 100 cases, where a coin is right in 50",
    ):
        assert part in text
    rows = [line for line in str(certificate).splitlines() if line[2:3] != " "]
    assert len(rows) == 21


@for_each("words", [3, 40, 400])
def test_the_printed_certificate_folds_and_loses_no_word(words):
    note = " ".join(f"word-{i}" for i in range(words))
    certificate = a_certificate(notes=["first", note], declared={"sizes": (10, 20)})
    lines = str(certificate).splitlines()
    assert max(map(len, lines)) <= 88
    assert note in unfolded(certificate)
    continued = [line for line in lines if line.startswith(" " * 14)]
    assert len(continued) >= words // 20


def test_certificates_compare_and_hash():
    """Equal by what they state, whatever the arrays and lists that they were made from."""
    one = a_certificate(declared={"sizes": np.array([3, 4]), "rate": math.inf})
    same = a_certificate(declared={"sizes": [3, 4], "rate": np.float64(math.inf)})
    assert (one == same) is True
    assert hash(one) == hash(same)
    assert len({one, same, Certificate.from_dict(json.loads(json.dumps(one.to_dict())))}) == 1
    assert (one == a_certificate(declared={"sizes": (3, 5), "rate": math.inf})) is False
    assert (one == a_certificate(a_release(std=9.0))) is False
    assert (one == "a certificate") is False


@settings(max_examples=100, deadline=None)
@given(mu=st.floats(1e-3, 10.0))
def test_printed_figures_are_not_below_the_true_ones(mu):
    text = str(gaussian(mu, 0))
    printed = dict(line.split(maxsplit=1) for line in text.splitlines()[1:])
    assert Fraction(printed["mu"]) >= Fraction(mu)
    assert Fraction(printed["mu"]) <= Fraction(mu) * (1 + Fraction(1, 99999))


@for_each(
    ("claimed", "beside"),
    [
        ({"epsilon": 1.0, "delta": 1e-5}, "true: epsilon 5.3"),
        ({"mu": 0.2}, "true: mu 1.17"),
        ({"rho": 0.02}, "true: rho 0.69"),
    ],
)
def test_the_true_value_stands_beside_the_claimed_one(claimed, beside):
    # 32 silos: each noises for epsilon = 1 alone, so mu is sqrt(32) times the claimed one
    std = 2.0 * math.sqrt(2.0 * math.log(1e5) / 32)
    assert beside in unfolded(a_certificate(a_release(std=std), claimed=claimed))


@for_each(
    ("changes", "message"),
    [
        ({"what": ""}, r"what must .*got"),
        ({"seen_by": None}, r"TypeError: seen_by must .*got NoneType"),
        ({"sensitivity": -1.0}, r"sensitivity must .*got -1"),
        ({"sensitivity": math.nan}, r"sensitivity must .*got nan"),
        ({"sensitivity": math.inf}, "sensitivity must be finite where noise was added"),
        ({"sensitivity": ()}, r"sensitivity must .*got"),
        ({"sensitivity": [1.0]}, r"TypeError: sensitivity must .*got \[1.0\]"),
        ({"std": -1.0}, r"std must .*got -1"),
        ({"std": math.inf}, r"std must .*got inf"),
        ({"std": (1.0,)}, "std must be one number, as sensitivity is"),
        ({"sensitivity": (1.0, 1.0)}, "std must be a tuple of 2 numbers"),
        ({"grid": 3.0}, "power of two"),
        ({"grid": 0.0}, "power of two"),
        ({"times": 0}, r"times must .*got 0"),
        ({"times": 1.0}, r"TypeError: times must .*got 1.0"),
        ({"dim": 0}, r"dim must .*got 0"),
        ({"draws": 0}, r"draws must .*got 0"),
        ({"per_record": 0}, r"per_record must .*got 0"),
        ({"per_record": -1}, r"per_record must .*got -1"),
        ({"per_record": 1.5}, r"TypeError: per_record must .*got 1.5"),
        ({"series": 1}, "series must be None without per_record"),
        ({"sampling": {"rate": math.nan}}, r"sampling.* must .*got nan"),
    ],
)
def test_releases_refuse_what_they_cannot_mean(changes, message):
    assert_refused(message, a_release, **changes)


@for_each(
    ("changes", "message"),
    [
        ({"trust": "server"}, r"trust must .*got 'server'"),
        ({"noise": "seeded"}, r"noise must .*got 'seeded'"),
        ({"neighbours": "both"}, r"neighbours must .*got 'both'"),
        ({"arithmetic": "double"}, r"arithmetic must .*got 'double'"),
        ({"bound": "lower"}, r"bound must .*got 'lower'"),
        ({"declared": {"x": math.nan}}, r"declared.* must .*got nan"),
        ({"declared": {"x": object()}}, r"TypeError: declared.* must .*got object"),
        ({"declared": {1: 2}}, "must have strings .* as keys"),
        ({"at_delta": 0.0}, r"at_delta must .*got 0"),
        ({"notes": [3]}, r"TypeError: notes must .*got int"),
    ],
)
def test_certificates_refuse_what_they_cannot_mean(changes, message):
    assert_refused(message, a_certificate, **changes)


def test_ledgers_refuse_another_number_of_silos_and_stay_as_they_were():
    ledger = a_ledger(a_release(sensitivity=(1.0, 1.0), std=(1.0, 1.0), grid=(1.0, 1.0)))
    before = ledger.releases
    with pytest.raises(ValueError, match=r"release must have one message per silo, 2 .* got 1"):
        ledger.append(a_release(sensitivity=(1.0,), std=(1.0,), grid=(1.0,)))
    assert_refused(r"TypeError: release must .*got tuple", ledger.append, (1.0, 2.0))
    assert ledger.releases == before


@for_each("function", ["epsilon", "delta"])
def test_certificates_refuse_arguments_out_of_range(function):
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"(epsilon|delta) must"):
            getattr(a_certificate(), function)(bad)


# -------------------------------------------------------------------------------- conversions


def of_silos(**changes):
    ledger = Ledger()
    one = dict(what="g", sensitivity=(2.0, 2.0), std=(8.0, 16.0), grid=(1.0, 1.0), dim=3)
    ledger.append(Release(**one, times=4, seen_by="silo"))
    declared = {"sizes": [5, 7]}
    return Certificate.from_ledger(ledger, trust="silo", noise="os", declared=declared, **changes)


def test_a_central_adversary_of_a_silo_run_sees_a_function_of_its_messages():
    silo = of_silos()
    central = silo.central()
    assert (central.trust, central.mu, central.bound) == ("central", silo.mu, "upper")
    assert central.epsilon(1e-5) == silo.epsilon(1e-5)
    assert_refused(r"trust must .*got 'central'", central.central)


def test_user_level_is_the_group_of_a_whole_silo_and_better_than_the_papers_conversion():
    silo = of_silos()
    user = silo.user_level()
    assert user.mu == 7 * silo.mu == silo.group(7).mu
    assert user.unit == "one silo, of 7 records at most"
    epsilon = silo.epsilon(1e-12)
    papers_delta = 7 * math.exp(6 * epsilon) * 1e-12
    assert papers_delta < 1
    assert user.epsilon(papers_delta) < 7 * epsilon
    assert_refused("sizes", replace(silo, declared={}).user_level)


def test_many_releases_that_differ_in_scale_only_are_one_line():
    ledger = Ledger()
    for k in range(1, 41):
        one = {"what": "differences", "sensitivity": (k / 8.0, 0.0), "std": (float(k), 0.0)}
        ledger.append(Release(**one, grid=(0.5, 0.5), dim=3, seen_by="silo"))
    text = unfolded(Certificate.from_ledger(ledger, trust="silo", noise="os"))
    assert text.count("differences") == 1
    assert "40 x 3 coordinates from silos, 2 at most, sensitivity 0.125 to 5" in text
    assert "noise std 1 to 40, grid 0.5, 40 kinds of them" in text


def test_mu_of_every_silo():
    """Its own messages, in series and alone, and what is about all the data."""
    own = a_release(sensitivity=(2.0, 1.0, 0.0), std=(8.0, 8.0, 0.0), grid=(2.0**-20,) * 3, times=4)
    few = {"per_record": 2, "series": 1, "std": (4.0, 8.0, 8.0), "grid": (2.0**-20,) * 3}
    capped = [a_release(sensitivity=(1.0,) * 3, times=t, **few) for t in (1, 5)]
    certificate = a_certificate(own, *capped, a_release(), trust="silo")
    squares = [4 / 16 + 2 / 16, 4 / 64 + 2 / 64, 2 / 64]
    assert certificate.mu_of_silos == pytest.approx([math.sqrt(s + 1 / 16) for s in squares])
    assert max(certificate.mu_of_silos) == certificate.mu
    assert a_certificate().mu_of_silos == (a_certificate().mu,)
    for other in (certificate.group(2), compose_sequential(certificate, certificate)):
        with pytest.raises(ValueError, match="mu_of_silos is for one record and one run"):
            _ = other.mu_of_silos
    assert a_certificate(a_release(std=None)).mu_of_silos == (math.inf,)


@for_each("parallel", [False, True])
def test_a_guarantee_without_a_rule_of_composition_is_refused(parallel):
    """It is not left out of the total."""
    others = [GaussianDP(mu=0.5), Selection.of_mean(5.0, eta=0.0, mu=0.1)]
    with pytest.raises(ValueError, match="to compose, got Selection"):
        composition._together(others, parallel=parallel)
