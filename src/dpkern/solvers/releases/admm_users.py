"""The users of ADMM, their participation schedule and their updates."""

from dpkern._typing import FloatArray
from dpkern.papers import noise
from dpkern.privacy.sampling.participation import (
    Graph,
    ParticipationSchedule,
    sample_users,
    walk_graph,
)
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.base.plan import RunPlan, require_convex_loss, resolve_number
from dpkern.solvers.base.run import Run
from dpkern.solvers.releases.admm_records import (
    CentralUsers,
    NoisyUsers,
    RecordUsers,
    SampledUsers,
    Users,
    at_most_half,
)
from dpkern.solvers.releases.admm_silos import HiddenSilos, InnerSolve, NoisySilos

NOT_SUMMED = (
    "upper bound: every user's noisy message is charged as if it had been released; that only "
    "their sum is seen is not used. The claimed figures take the users' independent noises for "
    "one noise on the mean, and are not proved"
)
NETWORK = (
    "the claimed figures are those of network differential privacy, against a single other user, "
    "and are unproved as printed: its amplification by iteration needs a token map that does not "
    "expand, and this one can. The certificate states the local guarantee, against everybody"
)
HIDDEN = (
    "hidden: the silos' states and the iterates of their inner solves; their bound rests on the "
    "declared row bound, loss and prox_step"
)
SEEN = (
    "hidden: the iterates of the silos' inner solves; their bound rests on the declared row bound, "
    "loss and prox_step"
)


class Consensus:
    """The users of a run of ADMM.

    Attributes
    ----------
    prox_step, relaxation : float
        gamma and lam.
    share : float
        Share of the users that participate in a round.
    advance : Users
        The users' update of a round.
    notes : tuple of str
        The certificate's notes about them.
    claimed : dict or None
        What the paper's calibration claims.
    """

    def __init__(self, run: Run) -> None:
        given = run.plan.arguments
        self._run, self.prox_step = run, float(given["prox_step"])
        self.relaxation: float = given["relaxation"]
        objective, claim = run.objective, run.plan.claimed
        self._n = objective.data.m if given["users"] == "silos" else objective.data.n
        self._schedule = schedule = self._choose_schedule()
        self._participants = self._n if schedule is None else schedule.users.shape[1]
        self.share = self._participants / self._n
        self.claimed = None if claim is None else claim | {"rho": noise.admm_rho(claim)}
        self.advance: Users
        self.notes: tuple[str, ...]
        self.advance, self.notes = self._choose() if claim is None else self._as_printed(claim)

    def compiled_rounds(self, zhat: FloatArray) -> tuple[FloatArray, int]:
        """Run the rounds of users that are records without Python between them.

        Returns the last zhat and the number of rounds that were run: all, with the bits of the
        caller's own loop; or none, for silos and where somebody looks at every round.
        """
        if self._run.is_watched or not isinstance(self.advance, RecordUsers):
            return zhat, 0
        return self.advance.all_rounds(zhat, self.relaxation, self.share), self._run.plan.rounds

    def silent(self, t: int) -> bool:
        """Return whether all users of round t have reached max_participations."""
        return self._schedule is not None and not self._schedule[t].size

    def _choose_schedule(self) -> ParticipationSchedule | None:
        """Draw the participation schedule; None means everybody in every round."""
        run, given = self._run, self._run.plan.arguments
        rounds, most = run.plan.rounds, given["max_participations"]
        if given["mode"] == "federated":
            M = given["participation"]
            return sample_users(run.public, n=self._n, participants=M, rounds=rounds, most=most)
        if given["mode"] == "token":
            return walk_graph(run.public, given["graph"], hops=rounds, most=most)
        return None

    @property
    def _most(self) -> int:
        """Largest number of participations of a user."""
        return self._run.plan.rounds if self._schedule is None else self._schedule.most

    def _choose(self) -> tuple[Users, tuple[str, ...]]:
        """Return the users with sound noise, and the notes about them."""
        run, central = self._run, self._run.plan.trust == "central"
        gamma, lam, schedule = self.prox_step, self.relaxation, self._schedule
        mu = run.plan.mu_of_one(self._most)
        if run.plan.arguments["users"] == "silos":
            solve = InnerSolve(run, prox_step=gamma)
            kind = HiddenSilos if central else NoisySilos
            left = (
                f"{run.plan.local_steps} inner steps leave at most {1.05 * solve.remaining:.2g} of "
                "the way to the prox"
            )
            notes = (left,) if mu is None else (left, HIDDEN if central else SEEN)
            return kind(run, solve, relaxation=lam, mu=mu, schedule=schedule), notes
        if not central:
            return NoisyUsers(run, gamma, relaxation=lam, schedule=schedule, mu=mu), ()
        if schedule is None:
            return CentralUsers(run, gamma, mu=mu), ()
        return SampledUsers(run, gamma, mu=mu, schedule=schedule, relaxation=lam), ()

    def _as_printed(self, claim: noise.Claim) -> tuple[Users, tuple[str, ...]]:
        """Return the users with the paper's noise, and the notes about them."""
        run, objective, central = self._run, self._run.objective, self._run.plan.trust == "central"
        # From z = 0, the sum of the messages of a single round is all that anybody sees.
        start = objective.full_prox(objective.start(), self.prox_step)
        summed = central and run.plan.rounds == 1 and not start.any()
        sigma = noise.admm(
            claim,
            mode=run.plan.arguments["mode"],
            clip=run.plan.clip,
            prox_step=self.prox_step,
            n=objective.data.n,
            rounds=run.plan.rounds,
            most=self._most,
        )
        users = NoisyUsers(
            run,
            self.prox_step,
            relaxation=self.relaxation,
            schedule=self._schedule,
            sigma=self.relaxation * sigma,
            summed=self._participants if summed else None,
            seen_by="central" if central else "local",
        )
        return users, () if summed else (NOT_SUMMED,) if central else (NETWORK,)


def resolve_consensus(plan: RunPlan, objective: Objective) -> RunPlan:
    """Return the plan with prox step, local steps and graph resolved.

    Raises ValueError where the mode or the kind of users rejects or lacks an argument.
    """
    given, trust, paper = plan.arguments, plan.trust, plan.paper
    mode, silos = given["mode"], given["users"] == "silos"
    if given["local_steps"] is None:
        plan = plan.replace_arguments(local_steps=20 if silos else 1)
    owner = "silo" if silos else "local"
    if trust not in ("central", owner):
        needed = "records" if silos else "silos"
        raise ValueError(f"trust={trust!r} needs users={needed!r} in admm: what noises is a user")
    require_convex_loss(plan, objective, "its prox is taken")
    if silos and paper:
        raise ValueError("calibration='paper' needs users='records', which the paper's users are")
    if not silos and given["weights"] != "size":
        raise ValueError("weights must be 'size' where users are records, got 'uniform'")
    if not silos and (plan.shares is not None or objective.data.party is not None):
        raise ValueError("users must be 'silos' in a federation, and where silos share the noise")
    if not silos and plan.local_steps != 1:
        raise ValueError("local_steps needs users='silos': the prox of a record is exact")
    if mode == "token" and trust != owner:
        raise ValueError(
            f"mode='token' needs trust={owner!r}: every user hears what the others send"
        )
    if mode != "token" and paper and trust != "central":
        raise ValueError(f"calibration='paper' needs trust='central' in mode={mode!r}")
    for name, modes in (
        ("participation", ("federated",)),
        ("max_participations", ("federated", "token")),
        ("graph", ("token",)),
    ):
        if mode not in modes and given[name] is not None:
            raise ValueError(f"{name} needs mode={' or '.join(map(repr, modes))}, got {mode!r}")
    if mode == "federated" and given["participation"] is None:
        raise ValueError("mode='federated' needs participation, the number of users of a round")
    if mode == "token":
        n = objective.data.m if silos else objective.data.n
        plan = plan.replace_arguments(graph=Graph.of(given["graph"], n))
    if trust == "central" and plan.claimed is None:
        at_most_half(plan, given["relaxation"])
    plan = resolve_number(plan, objective, "prox_step")
    objective.full_prox(objective.start(), plan.arguments["prox_step"])  # raises without a prox
    return plan
