"""What holds for every recorded run of every solver, whatever its options are."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from cases import for_each_in
from makers import recomputed_mu, transcript
from released_data import data
from released_runs import DELTA, EPSILON, budget, runs

from dpkern.privacy.mechanisms.binomial_sum import BinomialSum
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.privacy.mechanisms.hessian import GaussianHessian
from dpkern.privacy.mechanisms.last_iterate import LastIterate
from dpkern.privacy.mechanisms.messages import GaussianMessages
from dpkern.solvers.base import Run

MECHANISMS = (BinomialSum, GaussianSum, GaussianHessian, LastIterate, GaussianMessages)
# A search on numbers without noise, and noise of a length for another norm.
STATES_NOTHING = ("local_newton/silo/paper_search", "output_perturbation/paper")
PRIVATE = [
    id
    for id, run in runs().items()
    if run.options["budget"] is not None and id not in STATES_NOTHING
]
# Noise for so much: not that of a paper, nor where the bound is one of quadrature or of coins.
EXACT = [
    id
    for id in PRIVATE
    if runs()[id].options["budget"] == budget()
    and not any(word in id for word in ("paper", "shuffle", "objective", "poisson", "without"))
]


def each_run(ids):
    """Run a test on recorded runs, as one item for each solver."""
    by_solver = {}
    for id in ids:
        by_solver.setdefault(id.split("/")[0], []).append(id)
    return for_each_in("solver", "id", by_solver)


@each_run(EXACT)
def test_a_certificate_is_the_budget_and_follows_from_its_releases(id):
    certificate = runs()[id].run(1).privacy
    assert certificate.epsilon(DELTA) <= EPSILON
    assert certificate.epsilon(DELTA) == pytest.approx(EPSILON, rel=1e-6)
    assert Fraction(certificate.mu) <= Fraction(budget().mu) * (1 + Fraction(1, 2**40))
    assert certificate.mu == pytest.approx(recomputed_mu(certificate, 3), rel=1e-12)
    assert certificate.trust == runs()[id].options.get("trust", "central")


@pytest.fixture
def deaf(monkeypatch, round_by_round):
    """Mechanisms release the same bits whatever the records are."""

    def deafen(method):
        def release(*given, **named):
            real = method(*given, **named)
            fixed = np.linspace(-1.0, 1.0, real.size).reshape(real.shape)
            return fixed + fixed.transpose(0, 2, 1) if real.ndim == 3 else fixed

        return release

    for kind in MECHANISMS:
        monkeypatch.setattr(kind, "release", deafen(kind.release))
    monkeypatch.setattr(GaussianSum, "release_steps", deafen(GaussianSum.release_steps))


@pytest.mark.usefixtures("deaf")
@each_run(id for id in PRIVATE if "monitor/train" not in id)
def test_equal_releases_of_other_records_give_equal_results(id):
    run = runs()[id]
    first, other = run.run(1), replace(run, data=f"{run.data}-other").run(1)
    assert transcript(first) == transcript(other)


@each_run(runs())
def test_compiled_rounds_have_the_bits_of_the_loop_in_the_solvers_page(monkeypatch, id):
    """In calls of two rounds: models, histories, ledgers and messages."""
    monkeypatch.setattr("dpkern.solvers.base.run._CHUNK_NUMBERS", 2 * data(runs()[id].data).d)
    compiled = runs()[id].run(1)
    monkeypatch.setattr(Run, "is_watched", True)
    loop = runs()[id].run(1)
    assert transcript(compiled) == transcript(loop)
