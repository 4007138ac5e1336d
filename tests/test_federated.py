"""Runs whose silos are in several processes: the bits of one process, and only noisy sums."""

import math
from fractions import Fraction

import numpy as np
import pytest
from cases import for_each
from local_stars import QueueStar
from makers import same
from parties import NoMasks, Study, own_records
from scipy import sparse

import dpkern as dpk
from dpkern.data.parted import held_by
from dpkern.federated.links import CoordinatorLostError, SilosLostError
from dpkern.federated.party import CoordinatorParty, ProtocolError, SiloParty
from dpkern.models.ordinal import CumulativeLogit
from dpkern.models.penalties import L1
from dpkern.party import Party
from dpkern.privacy.certificate.ledger import Ledger
from dpkern.privacy.mechanisms.channel import SEEN_BY, Channel, Shares
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.privacy.mechanisms.hessian import GaussianHessian
from dpkern.privacy.mechanisms.messages import GaussianMessages

BUDGET = dpk.Budget(epsilon=1.0, delta=1e-5)
RUNS = [
    ("gradient_descent", {"rounds": 6}),
    ("gradient_descent", {"rounds": 4, "neighbours": "add_remove", "public_size": (150,) * 4}),
    ("gradient_descent", {"rounds": 4, "penalty": L1(0.01)}),
    ("federated_gd", {"rounds": 4}),
    ("federated_gd", {"rounds": 3, "local_steps": 3}),
    ("wd_dp", {"local_steps": 5}),
    ("output_perturbation", {"local_steps": 5}),
    ("local_newton", {"rounds": 3}),
    ("local_newton", {"rounds": 2, "step_size": "private_search"}),
    ("newton_inference", {"rounds": 4}),
    ("newton_inference", {"neighbours": "add_remove", "public_size": (150,) * 4}),
    ("ridge", {"loss": "squared"}),
    ("admm", {"rounds": 3, "users": "silos"}),
    ("admm", {"rounds": 3, "users": "silos", "mode": "federated", "participation": 2}),
    ("prox_sgd", {"rounds": 4}),
    ("prox_svrg", {}),
    ("prox_pl_svrg", {}),
    ("spider", {"rounds": 4}),
    ("minibatch_sgd", {"rounds": 4, "participation": (1, 3, 2, 3)}),
    ("minibatch_sgd", {"rounds": 4, "sampling": "one_pass"}),
    ("minibatch_sgd", {"rounds": 3, "sampling": "without_replacement", "batch_size": 20}),
    ("minibatch_sgd", {"rounds": 3, "returns": "random", "step_size": 0.1}),
    ("local_sgd", {"rounds": 3, "local_steps": 2}),
    ("local_sgd", {"rounds": 3, "local_steps": 2, "sampling": "cyclic", "batch_size": 10}),
    ("local_sgd", {"rounds": 2, "local_steps": 2, "noise": "step", "trust": "silo"}),
    ("federated_gd", {"rounds": 2, "local_steps": 3, "l2": 0.1, "accounting": "last_iterate"}),
]


@pytest.fixture(scope="module")
def data():
    return dpk.datasets.load_wisconsin(m=4, intercept=True, row_bound=4.0)


def trusts_of(arguments):
    if "trust" in arguments:
        return [arguments["trust"]]
    return ["silo"] if arguments.get("accounting") == "last_iterate" else ["central", "silo"]


CASES = [(name, how, trust) for name, how in RUNS for trust in trusts_of(how)]


def assert_bits_of_one_process(name, data, trust="central", **arguments):
    arguments |= {"budget": BUDGET, "trust": trust}
    t = 1 if trust == "central" else None
    expected = dpk.solve(name, data, rng=7, colluding=t, **arguments)
    study = Study(data, colluding=1)
    study.run(name, **arguments)
    assert study.failures == [None] * (data.m + 1)
    assert all(same(found, expected) for found in study.results)


@for_each(("name", "how", "trust"), CASES)
def test_parties_have_the_bits_of_one_process(data, name, how, trust):
    assert_bits_of_one_process(name, data, **{"l2": 1e-3} | how | {"trust": trust})


def test_perceptrons_and_users_models():
    data = dpk.datasets.load_wisconsin(m=4, row_bound=4.0)
    how = {"clip": 1.0, "rounds": 3, "step_size": 0.1}
    how["model"] = dpk.MLP(hidden=(3,), loss="logistic")
    for trust in ("central", "silo"):
        assert_bits_of_one_process("minibatch_sgd", data, trust, **how)


@pytest.mark.filterwarnings("ignore::dpkern.privacy.BudgetWarning")
@for_each("model", [dpk.AllThreshold(), CumulativeLogit()])
@for_each("is_sparse", [False, True])
def test_ordered_classes_with_standard_errors(model, is_sparse):
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1.0, 1.0, (400, 3)), rng.integers(0, 4, 400)
    how = {"task": "multiclass", "classes": range(4), "row_bound": 1.5}
    data = dpk.SiloData(sparse.csr_array(X) if is_sparse else X, y, [0, 90, 200, 400], **how)
    assert_bits_of_one_process("newton_inference", data, model=model, rounds=4)


def test_sparse_rows():
    rng = np.random.default_rng(0)
    X = sparse.random_array((200, 30), density=0.2, rng=rng, format="csr")
    y = np.where(rng.random(200) < 0.5, "a", "b")
    data = dpk.SiloData(X, y, [0, 90, 130, 200], row_bound=1.0)
    assert_bits_of_one_process("gradient_descent", data, rounds=4)


# ------------------------------------------------------------------------------- noise by shares


def channel_of(shares, seed=1):
    return Channel(Ledger(), dpk.NoiseStream(seed), SEEN_BY["central"], shares=shares)


@for_each("t", [0, 1, 2])
def test_noise_of_honest_silos_has_the_budget(t):
    mechanism = GaussianSum(
        channel_of(Shares(4, t)), what="sum", clip=1.0, dim=3, sizes=(400,), mu=0.5
    )
    share = Fraction(mechanism.sigma[0])
    assert len(set(mechanism.sigma.tolist())) == 1
    least = Fraction(4)  # 2 C / mu
    assert least**2 <= (4 - t) * share**2 <= least**2 * (1 + Fraction(1, 10**9))
    entry = mechanism._entry
    assert Fraction(entry.std) ** 2 <= (4 - t) * share**2
    assert Fraction(entry.sensitivity) / Fraction(entry.std) <= Fraction(1, 2)
    assert entry.draws == 12


def test_with_no_colluding_silo_the_variance_is_the_aggregators():
    alone = GaussianSum(channel_of(None), what="sum", clip=1.0, dim=3, sizes=(400,), mu=0.3)
    shared = GaussianSum(
        channel_of(Shares(8, 0)), what="sum", clip=1.0, dim=3, sizes=(400,), mu=0.3
    )
    assert np.sum(shared.sigma**2) == pytest.approx(alone.sigma[0] ** 2, rel=1e-9)
    B = {"what": "Hessian", "hess_clip": 0.25, "dim": 4, "sizes": (400,), "mu": 0.3}
    alone, shared = (
        GaussianHessian(channel_of(None), **B),
        GaussianHessian(channel_of(Shares(8, 0)), **B),
    )
    assert 8 * shared._share**2 == pytest.approx(alone.sigma**2, rel=1e-9)
    assert shared.noise_norm == pytest.approx(alone.noise_norm, rel=1e-9)


def test_released_noise_has_the_variance_of_all_shares():
    d = 20_000
    for t in (0, 2):
        channel = channel_of(Shares(4, t))
        mechanism = GaussianSum(channel, what="sum", clip=1.0, dim=d, sizes=(400,), mu=0.5)
        released = mechanism.release(np.zeros((4, d)))
        expected = 4.0 * math.sqrt(4 / (4 - t))
        assert released.std() == pytest.approx(expected, rel=5 * math.sqrt(0.5 / d))


def test_released_hessian_noise_has_the_variance_of_all_shares():
    d = 150
    mechanism = GaussianHessian(
        channel_of(Shares(4, 2)), what="H", hess_clip=1.0, dim=d, sizes=(400,), mu=0.5
    )
    released = mechanism.release(np.zeros((4, d, d)))
    assert released.shape == (1, d, d)
    assert np.array_equal(released[0], released[0].T)
    above = released[0][np.triu_indices(d, 1)]
    expected = mechanism._share * math.sqrt(4 / 2)
    assert above.std() == pytest.approx(expected, rel=5 * math.sqrt(0.5 / above.size))
    assert mechanism._share * 2.0 == pytest.approx(mechanism.sigma * math.sqrt(2.0), rel=1e-9)


def test_released_messages_have_the_noise_of_all_shares():
    d = 20_000
    mechanism = GaussianMessages(channel_of(Shares(4, 2)), what="model", dim=d, mu=0.5)
    released = mechanism.release(np.zeros((4, d)), sensitivity=[1.0] * 4, bound=1.0)
    entry = mechanism._channel.ledger.releases[-1]
    assert entry.sensitivity / entry.std <= 0.5
    expected = entry.std * math.sqrt(4 / 2)
    assert released.std() == pytest.approx(expected, rel=5 * math.sqrt(0.5 / d))


def test_a_share_of_few_grid_steps_is_refused():
    with pytest.raises(ValueError, match="share must be at least 8 grid steps"):
        GaussianSum(
            channel_of(Shares(256, 0)), what="sum", clip=1.0, dim=1, sizes=(1 << 40,), sigma=1e-4
        )


def test_every_draw_of_a_share_is_charged(data):
    """Each silo draws noise for every coordinate, whatever the release."""
    for name, how in (("wd_dp", {"local_steps": 2}), ("local_newton", {"rounds": 1})):
        result = dpk.solve(name, data, budget=BUDGET, rng=1, colluding=1, **how)
        for release in result.privacy.releases:
            assert release.n_draws == 4 * release.dim * release.times


def test_the_least_share_of_a_hessian_is_that_above_the_diagonal():
    B = {"what": "Hessian", "hess_clip": 0.25, "dim": 4, "sizes": (400,), "mu": 0.3}
    alone = GaussianHessian(channel_of(None), **B)
    steps = alone.sigma / alone.grid
    few, many = (int((steps / diagonal) ** 2) for diagonal in (11.5, 9.0))
    GaussianHessian(channel_of(Shares(few, 0)), **B)
    GaussianHessian(channel_of(Shares(many, 0)), triangle=True, **B)
    with pytest.raises(ValueError, match="share must be at least 8 grid steps"):
        GaussianHessian(channel_of(Shares(many, 0)), **B)


def test_a_guarantee_for_sizes_says_that_the_study_states_them(data):
    study = Study(data)
    arguments = {"neighbours": "add_remove", "public_size": (150,) * 4, "rounds": 2}
    study.run("gradient_descent", budget=BUDGET, **arguments)
    for result in study.results:
        assert any("the study states the silos' numbers" in n for n in result.privacy.notes)


@for_each("t", [0, 1, 2, 3])
def test_certificates_agree_with_dp_accounting(data, t):
    events = pytest.importorskip("dp_accounting")
    how = {"rounds": 5, "recalibrate": False, "colluding": t}
    result = dpk.solve("gradient_descent", data, budget=BUDGET, rng=1, **how)
    assert result.privacy.epsilon(1e-5) <= 1.0
    (release,) = result.privacy.releases
    assert release.times == 5
    # The std of a share is no part of the certificate: that of the others' noise is.
    accountant = events.pld.PLDAccountant()
    accountant.compose(
        events.SelfComposedDpEvent(
            events.GaussianDpEvent(release.std / release.sensitivity), release.times
        )
    )
    assert accountant.get_epsilon(1e-5) == pytest.approx(1.0, rel=1e-3)
    assert any(f"all silos but {t} of the 4" in note for note in result.privacy.notes)
    assert result.privacy.declared["colluding"] == t


def test_what_cannot_be_shared_is_refused(data):
    def refused(match, name="gradient_descent", **arguments):
        with pytest.raises(ValueError, match=match):
            dpk.solve(name, data, **({"budget": BUDGET, "colluding": 1} | arguments))

    refused("colluding needs a solver whose releases", "double_noise_newton")
    refused("colluding needs a solver whose releases", "objective_perturbation")
    refused("colluding needs a solver whose releases", "fixed_point")
    refused("users must be 'silos'", "admm")
    refused("colluding needs trust='central'", trust="silo")
    refused("colluding needs calibration='sound'", calibration="paper")
    refused("colluding must be below the 4 silos", colluding=4)
    refused("colluding must be at least 0", colluding=-1)


def test_what_a_federation_lacks_is_refused(data):
    def failures(name="gradient_descent", **arguments):
        study = Study(data, colluding=1)
        study.run(name, **({"budget": BUDGET} | arguments))
        return {type(e) for e in study.failures}, str(study.failures[-1])

    ended = {ValueError, CoordinatorLostError}  # silos that had not heard of it yet

    for arguments, match in (
        ({"budget": None}, "budget must be given"),
        ({"monitor": "train"}, "monitor must be None"),
        ({"calibration": "paper"}, "needs calibration='sound'"),
        ({"colluding": 0}, "colluding must be that of the study, 1, got 0"),
        ({"name": "double_noise_newton"}, "needs a solver whose releases"),
        ({"name": "minibatch_sgd", "trust": "shuffle", "clip": 1.0}, "needs trust"),
    ):
        kinds, message = failures(**arguments)
        assert kinds <= ended
        assert match in message


def test_nobody_releases_what_no_party_has(data):
    class Alone(Party):
        silo, colluding, public = 0, 0, dpk.NoiseStream(1)

        def ready(self):
            raise AssertionError

        def total(self, steps, what):
            raise AssertionError

        def messages(self, rows, what):
            raise AssertionError

    channel = Channel(Ledger(), dpk.NoiseStream(1), SEEN_BY["central"], shares=None, party=Alone())
    mechanism = GaussianSum(channel, what="sum", clip=1.0, dim=2, sizes=(10,), mu=1.0)
    with pytest.raises(RuntimeError, match="no party has all records"):
        mechanism.release(np.zeros(2))
    assert not len(channel.ledger)


def test_the_held_records_are_checked(data):
    party = CoordinatorParty(
        QueueStar("abcd"), colluding=0, opening=b"", told=b"", public=dpk.NoiseStream(1)
    )
    party.silo = 1
    with pytest.raises(ValueError, match="sizes must be the numbers of records"):
        held_by(party, own_records(data, 1), data.sizes + 1)
    X, y = np.zeros((4, 2)), [-1.0, 1.0] * 2
    for beside, message in (
        ({"person": [0, 0, 1, 1], "max_records": 2}, "person must be None in a federation"),
        ({"weight": [1.0, 0.5, 0.5, 1.0], "max_weight": 1.0}, "neither weight nor margin_offset"),
    ):
        own = dpk.SiloData(X, y, [0, 4], **beside)
        with pytest.raises(ValueError, match=message):
            held_by(party, own, np.array([4, 4]))


# ----------------------------------------------------------------------------- what is exchanged


class Tampering(QueueStar):
    """A coordinator's end that changes what silo 0 is told in one round."""

    def __init__(self, silos, round, change):
        super().__init__(silos, deadline=5.0)
        self._round, self._change, self.answers = round, change, []

    def exchange(self, messages):
        told = list(messages)
        if len(self.answers) == self._round:
            told[0] = self._change(told[0])
        found = super().exchange(told)
        self.answers.append(found)
        return found


def flipped(message):
    """Change the least bits of the last number, which leaves a sum plausible."""
    return message[:-8] + bytes([message[-8] ^ 1]) + message[-7:]


@for_each(
    ("round", "change", "kind"),
    [
        (0, lambda message: b"another opening", ProtocolError),
        (1, flipped, SilosLostError),
        (2, flipped, ProtocolError),
        (2, lambda message: message[:-8], SilosLostError),
        (2, lambda message: b"", SilosLostError),
        (2, lambda message: message[:4] + b"\x05" + message[5:], SilosLostError),
    ],
)
def test_a_silo_that_is_told_something_else_ends_the_study(data, round, change, kind):
    star = Tampering(["s0", "s1", "s2", "s3"], round, change)
    study = Study(data, star=star)
    study.run("gradient_descent", budget=BUDGET, rounds=4)
    assert isinstance(study.failures[-1], kind)
    assert "s0" in str(study.failures[-1])
    assert all(study.failures[:4])
    assert study.results == [None] * 5


def test_a_silo_with_another_plan_ends_the_study(data):
    study = Study(data)
    study.run("gradient_descent", budget=BUDGET, rounds=4, of_silo={2: {"clip": 64.0}})
    assert "s2" in str(study.failures[-1])


def test_a_message_that_a_silo_did_not_send_is_refused(data):
    study = Study(data, star=Tampering(["s0", "s1", "s2", "s3"], 2, flipped_own))
    study.run("gradient_descent", budget=BUDGET, rounds=4, trust="silo")
    assert isinstance(study.failures[0], ProtocolError)
    assert "sent another message" in str(study.failures[0])


def flipped_own(message):
    """Change the first number of the first silo's message, which follows 44 bytes of a head."""
    return message[:44] + bytes([message[44] ^ 1]) + message[45:]


def test_a_silos_messages_hold_nothing_but_its_noisy_sums(data):
    """What a silo sends is the head and its own words; other silos' rows are never there."""
    star = Tampering(["s0", "s1", "s2", "s3"], 99, None)
    Study(data, star=star).run("gradient_descent", budget=BUDGET, rounds=3)
    ready, first = star.answers[:2]
    assert len(set(ready)) == 1
    assert len(ready[0]) == 44
    words = [np.frombuffer(answer[44:], dtype="<i8") for answer in first]
    assert {len(answer) for answer in first} == {44 + 8 * data.d}
    assert len({w.tobytes() for w in words}) == 4
    # Each holds a share of the noise, so that none is the sum of its own records alone.
    for j, own in enumerate(words):
        alone = dpk.kernels.glm_gradient(
            data, np.zeros(data.d), loss="logistic", clip=1.0, grid=2.0**-20
        )[j]
        assert not np.array_equal(own * 2.0**-20, alone)


def accountants(folder, budgets):
    return [
        dpk.Accountant(folder / f"s{j}.json", epsilon=epsilon, delta=1e-5)
        for j, epsilon in enumerate(budgets)
    ]


@for_each("trust", ["central", "silo"])
def test_a_silo_without_budget_costs_the_others_nothing(data, tmp_path, trust):
    ledgers = accountants(tmp_path, [1.0, 1.0, 0.5, 1.0])
    study = Study(data)
    of_silo = {j: {"accountant": one} for j, one in enumerate(ledgers)}
    study.run("gradient_descent", budget=BUDGET, rounds=4, trust=trust, of_silo=of_silo)
    assert isinstance(study.failures[2], dpk.BudgetSpentError)
    assert "s2: BudgetSpentError" in str(study.failures[-1])
    assert [one.spent for one in ledgers] == [0.0] * 4
    assert [len(one.entries) for one in ledgers] == [1, 1, 0, 1]
    assert not any(hasattr(error, "__notes__") for error in study.failures)


def test_a_study_that_ends_in_its_first_round_is_charged(data, tmp_path):
    """Silos have sent their sums, whatever the coordinator says of them."""
    ledgers = accountants(tmp_path, [2.0] * 4)
    study = Study(data, star=Tampering(["s0", "s1", "s2", "s3"], 2, lambda message: b""))
    of_silo = {j: {"accountant": one} for j, one in enumerate(ledgers)}
    study.run("gradient_descent", budget=BUDGET, rounds=4, of_silo=of_silo)
    assert all(study.failures)
    assert all(0.99 < one.spent <= 1.01 for one in ledgers)


class Silent(QueueStar):
    """A coordinator's end that hears that all silos are ready, and says nothing more."""

    def exchange(self, messages):
        super().exchange(messages)
        self.spent = [one.spent for one in self.ledgers]
        raise OSError("the coordinator is gone")


def test_all_are_charged_before_anybody_releases(data, tmp_path):
    star = Silent(["s0", "s1", "s2", "s3"], deadline=5.0)
    star.ledgers = ledgers = accountants(tmp_path, [2.0] * 4)
    study = Study(data, star=star)
    of_silo = {j: {"accountant": one} for j, one in enumerate(ledgers)}
    study.run("gradient_descent", budget=BUDGET, rounds=4, of_silo=of_silo)
    assert [type(error) for error in study.failures] == [CoordinatorLostError] * 4 + [OSError]
    assert all(0.99 < spent <= 1.01 for spent in star.spent)
    assert [one.spent for one in ledgers] == [0.0] * 4


def test_noise_is_recorded_before_anything_is_sent(data):
    """A silo that cannot send has charged what it would have sent."""
    party = SiloParty(
        None,
        NoMasks(),
        silo=0,
        colluding=0,
        opening=b"",
        public=dpk.NoiseStream(1),
    )
    ledger = Ledger()
    channel = Channel(
        ledger, dpk.NoiseStream(1), SEEN_BY["central"], shares=Shares(4, 0), party=party
    )
    mechanism = GaussianSum(channel, what="sum", clip=1.0, dim=2, sizes=(10,), mu=1.0)
    with pytest.raises(AttributeError):
        mechanism.release(np.zeros((4, 2)))
    assert len(ledger) == 1
