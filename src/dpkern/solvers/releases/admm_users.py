"""The users of ADMM, their participation schedule and their updates."""

from dpkern._numbers import positive
from dpkern.papers import noise
from dpkern.privacy.participation import ParticipationSchedule, sample_users, walk_graph
from dpkern.solvers.base.run import Run
from dpkern.solvers.releases.admm_records import (
    CentralUsers,
    NoisyUsers,
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


def check_arguments(run: Run) -> None:
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


def prox_step_of(run: Run) -> float:
    half = run.parameters["prox_step"] == "auto" and run.parameters["users"] == "silos"
    gamma = run.number_or_auto("prox_step")
    if half:  # for which 20 inner steps converge to the prox, whatever the number of records
        gamma = run.parameters["prox_step"] = 0.5 * gamma
    return gamma


def relaxation_of(run: Run) -> float:
    lam = positive("relaxation", run.parameters["relaxation"])
    if lam > 1.0:
        raise ValueError(f"relaxation is {lam!r}; it must be at most 1")
    if run.trust == "central" and run.claimed is None:
        at_most_half(run, lam)
    return lam


def number_of_users(run: Run) -> int:
    data = run.objective.data
    return data.m if run.parameters["users"] == "silos" else data.n


def choose_schedule(run: Run) -> ParticipationSchedule | None:
    """Return the participation schedule; None means everybody in every round."""
    n, parameters = number_of_users(run), run.parameters
    most = parameters["max_participations"]
    if parameters["mode"] == "federated":
        return sample_users(
            run.stream,
            n=n,
            participants=parameters["participation"],
            rounds=run.rounds,
            most=most,
        )
    if parameters["mode"] == "token":
        graph = parameters["graph"]
        walk = walk_graph(run.stream, n=n, hops=run.rounds, graph=graph, most=most)
        edges = "complete" if graph is None else f"connected, {graph.nnz} entries"
        parameters["graph"] = edges
        return walk
    return None


def choose_users(
    run: Run, gamma: float, lam: float, schedule: ParticipationSchedule | None, *, alone: bool
) -> tuple[Users, tuple[str, ...]]:
    """Return the users of the run, and the certificate's notes about them."""
    central = run.trust == "central"
    most = run.rounds if schedule is None else schedule.most
    if run.claimed is not None:
        alone = alone and central
        n = run.objective.data.n
        sigma = noise.admm(
            run.claimed,
            mode=run.parameters["mode"],
            clip=run.clip,
            prox_step=gamma,
            n=n,
            rounds=run.rounds,
            most=most,
        )
        senders = n if schedule is None else schedule.users.shape[1]
        paper = NoisyUsers(
            run,
            prox_step=gamma,
            relaxation=lam,
            schedule=schedule,
            sigma=lam * sigma,
            summed=senders if alone else None,
            seen_by="central" if central else "local",
        )
        return paper, () if alone else (NOT_SUMMED,) if central else (NETWORK,)
    mu = run.mu_of_one(most)
    if run.parameters["users"] == "silos":
        solve = InnerSolve(run, prox_step=gamma)
        kind = HiddenSilos if central else NoisySilos
        left = f"{run.local_steps} inner steps leave at most {1.05 * solve.remaining:.2g} of the "
        notes = (left + "way to the prox",) + (HIDDEN if central else SEEN,) * (mu is not None)
        return kind(run, solve, relaxation=lam, mu=mu, schedule=schedule), notes
    if not central:
        local = NoisyUsers(run, prox_step=gamma, relaxation=lam, schedule=schedule, mu=mu)
        return local, ()
    if schedule is None:
        return CentralUsers(run, prox_step=gamma, mu=mu), ()
    return SampledUsers(run, prox_step=gamma, mu=mu, schedule=schedule, relaxation=lam), ()
