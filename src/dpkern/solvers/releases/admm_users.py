"""The users of ADMM, their participation schedule and their updates."""

from dpkern._typing import FloatArray
from dpkern.papers import noise
from dpkern.privacy.sampling.participation import ParticipationSchedule, sample_users, walk_graph
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
        _check_arguments(run)
        self._run, self.prox_step = run, run.number_or_auto("prox_step")
        self.relaxation: float = run.parameters["relaxation"]
        if run.trust == "central" and run.claimed is None:
            at_most_half(run, self.relaxation)
        objective, claim = run.objective, run.claimed
        objective.full_prox(objective.start(), self.prox_step)  # raises where there is none
        self._n = objective.data.m if run.parameters["users"] == "silos" else objective.data.n
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
        return self.advance.all_rounds(zhat, self.relaxation, self.share), self._run.rounds

    def silent(self, t: int) -> bool:
        """Return whether all users of round t have reached max_participations."""
        return self._schedule is not None and not self._schedule[t].size

    def _choose_schedule(self) -> ParticipationSchedule | None:
        """Draw the participation schedule; None means everybody in every round."""
        run, parameters = self._run, self._run.parameters
        most = parameters["max_participations"]
        if parameters["mode"] == "federated":
            M = parameters["participation"]
            return sample_users(run.public, n=self._n, participants=M, rounds=run.rounds, most=most)
        if parameters["mode"] == "token":
            graph = parameters["graph"]
            walk = walk_graph(run.public, n=self._n, hops=run.rounds, graph=graph, most=most)
            edges = "complete" if graph is None else f"connected, {graph.nnz} entries"
            parameters["graph"] = edges
            return walk
        return None

    @property
    def _most(self) -> int:
        """Largest number of participations of a user."""
        return self._run.rounds if self._schedule is None else self._schedule.most

    def _choose(self) -> tuple[Users, tuple[str, ...]]:
        """Return the users with sound noise, and the notes about them."""
        run, central = self._run, self._run.trust == "central"
        gamma, lam, schedule = self.prox_step, self.relaxation, self._schedule
        mu = run.mu_of_one(self._most)
        if run.parameters["users"] == "silos":
            solve = InnerSolve(run, prox_step=gamma)
            kind = HiddenSilos if central else NoisySilos
            left = (
                f"{run.local_steps} inner steps leave at most {1.05 * solve.remaining:.2g} of the "
                "way to the prox"
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
        run, objective, central = self._run, self._run.objective, self._run.trust == "central"
        # From z = 0, the sum of the messages of a single round is all that anybody sees.
        start = objective.full_prox(objective.start(), self.prox_step)
        summed = central and run.rounds == 1 and not start.any()
        sigma = noise.admm(
            claim,
            mode=run.parameters["mode"],
            clip=run.clip,
            prox_step=self.prox_step,
            n=objective.data.n,
            rounds=run.rounds,
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


def _check_arguments(run: Run) -> None:
    """Raise ValueError where the mode or the kind of users rejects or lacks an argument."""
    parameters, trust, paper = run.parameters, run.trust, run.paper
    mode, silos = parameters["mode"], parameters["users"] == "silos"
    if parameters["local_steps"] is None:
        run.local_steps = parameters["local_steps"] = 20 if silos else 1
    own = "silo" if silos else "local"
    if trust not in ("central", own):
        needed = "records" if silos else "silos"
        raise ValueError(f"trust={trust!r} needs users={needed!r} in admm: what noises is a user")
    run.needs_convex_loss("its prox is taken")
    if silos and paper:
        raise ValueError("calibration='paper' needs users='records', which the paper's users are")
    if not silos and parameters["weights"] != "size":
        raise ValueError("weights must be 'size' where users are records, got 'uniform'")
    if not silos and (run.shares is not None or run.objective.data.party is not None):
        raise ValueError("users must be 'silos' in a federation, and where silos share the noise")
    if not silos and run.local_steps != 1:
        raise ValueError("local_steps needs users='silos': the prox of a record is exact")
    if mode == "token" and trust != own:
        raise ValueError(f"mode='token' needs trust={own!r}: every user hears what the others send")
    if mode != "token" and paper and trust != "central":
        raise ValueError(f"calibration='paper' needs trust='central' in mode={mode!r}")
    for name, modes in (
        ("participation", ("federated",)),
        ("max_participations", ("federated", "token")),
        ("graph", ("token",)),
    ):
        if mode not in modes and parameters[name] is not None:
            raise ValueError(f"{name} needs mode={' or '.join(map(repr, modes))}, got {mode!r}")
    if mode == "federated" and parameters["participation"] is None:
        raise ValueError("mode='federated' needs participation, the number of users of a round")
