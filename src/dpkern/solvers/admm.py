"""Private consensus ADMM, a record or a silo a user: centralised, federated and by a token.

Cyffers, Bellet, Basu, "From noisy fixed-point iterations to private ADMM for centralized and
federated learning", ICML 2023; algorithms 8, 10 and 12 of Basu's slides on it, whose formulas are
those of calibration "paper". For min_z (1/n) sum_i f_i(z) + r(z):

    u_i = 0 for every user i;  zhat = 0;  z = prox_{gamma r}(zhat)
    for k = 1..rounds:
        for every user i whose turn it is:        everybody | a random sample | who holds the token
            x_i = prox_{gamma f_i}(2 z - u_i)
            u_i = u_i + 2 lam (x_i - z)
        zhat = mean_i u_i
        z = prox_{gamma r}(zhat)
    return z

    sound, central:  noise on the sum of what users send
    sound, local:    u_i = u_i + 2 lam (x_i - z) + Z_i, a message that everybody sees
    paper:           u_i = u_i + 2 lam (x_i - z + eta_i / 2), whatever the mode

f_i is the clipped loss of record i. The paper calibrates the users' independent noises as if all of
them were one noise on the mean; what they are worth is on the certificate.

Silos as users are not the paper's: f_j is the mean of a silo's clipped losses, x_j comes from K
gradient steps, and means are weighted (`dpkern.solvers._silo_users`).
"""

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpkern._numbers import positive
from dpkern.data import SiloData
from dpkern.losses import Loss
from dpkern.privacy import Budget, NoiseStream
from dpkern.privacy.participation import ParticipationSchedule, sample_users, walk_graph
from dpkern.solvers._docs import documented
from dpkern.solvers._objective import Penalty
from dpkern.solvers._result import SolverResult
from dpkern.solvers._run import Callback, Monitor, Run
from dpkern.solvers._silo_users import HiddenSilos, InnerSolve, NoisySilos
from dpkern.solvers._users import (
    CentralUsers,
    NoisyUsers,
    SampledUsers,
    Users,
    at_most_half,
    refuse_non_convex,
)

FloatArray = NDArray[np.float64]

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


@documented
def admm(
    data: SiloData,
    *,
    budget: Budget | None,
    clip: float | None = None,
    loss: str | Loss = "logistic",
    l2: float = 0.0,
    l1: float = 0.0,
    regularizer: Penalty = None,
    rounds: int = 300,
    users: Literal["records", "silos"] = "records",
    local_steps: int | None = None,
    prox_step: float | Literal["auto"] = "auto",
    relaxation: float = 0.5,
    mode: Literal["central", "federated", "token"] = "central",
    participation: int | None = None,
    max_participations: int | None = None,
    carry_zhat: bool = True,
    graph: Any = None,
    weights: Literal["size", "uniform"] = "size",
    trust: Literal["central", "local", "silo"] = "central",
    calibration: Literal["sound", "paper"] = "sound",
    neighbours: Literal["replace_one"] = "replace_one",
    penalize_intercept: bool = True,
    rng: int | NoiseStream | None = None,
    n_threads: int | None = None,
    progress: bool = False,
    callback: Callback | None = None,
    monitor: Monitor = None,
) -> SolverResult:
    r"""Consensus ADMM on the clipped objective, a record or a silo being a user.

    Parameters
    ----------
    data : SiloData
        n records in m silos.
    loss : str or Loss
        A convex one; see `dpkern.losses`.
    regularizer : (name or Regularizer, strength) or None
        A penalty or constraint with a prox, such as ("non_negative", 1.0). All penalties are in r.
    rounds : int
        Number of released changes of z; of a token, hops.
    users : {"records", "silos"}
        Who the users are: every record of its own, whatever its silo, or every silo with the mean
        of its clipped losses. Either way it is one record whose replacement neighbours differ in.
    local_steps : int or None
        With silos K, the gradient steps of size 1 / (L + 1/gamma) that stand for a prox: they end
        within (gamma L / (1 + gamma L))^K gamma C of it, which the result's certificate repeats
        as a number. The sensitivity is that of the steps, whatever their end. None is 20.
    prox_step : float or "auto"
        gamma > 0. "auto" is 1 / (L + l2), L = phi''max row_bound^2; with silos half of that.
    relaxation : float
        lam in (0, 1]; at most 1/2 with a clip norm, but under local trust and in paper mode.
    mode : {"central", "federated", "token"}
        Who takes part in a round: every user, `participation` of them drawn uniformly without
        replacement, or the one that holds the token.
    participation : int
        Users of a round, in federated mode.
    max_participations : int, optional
        A user that has taken part so often stays silent, in federated and token mode. The busiest
        user of the schedule, which is drawn in advance, decides the noise either way.
    carry_zhat : bool
        False is the federated and token algorithm as printed: zhat restarts from z in every round.
        Then mean(u) and zhat drift apart, and z tends to a minimiser of r, whatever the records
        are, where r is not 0. Noise and sensitivity are the same.
    graph : sparse matrix, optional
        Symmetric adjacency, a row for every user, of a connected graph on which the token walks, to
        any neighbour with equal probability; None is the complete graph. Public.
    weights : {"size", "uniform"}
        Silo weights p_j = n_j / N or 1 / m, where silos are users; records count alike ("size").
    trust : {"central", "local", "silo"}
        Whether the sum of a round is all that is seen, or every user adds its own noise to what it
        sends: "local" where users are records, "silo" where they are silos. A token needs that.
    calibration : {"sound", "paper"}
        "paper" draws the paper's noise lam sigma on every u_i and certifies what it really gives.
    neighbours : {"replace_one"}
        Adding or removing a record is not offered here.

    Returns
    -------
    result : SolverResult
        Its history holds an entry for every round in which somebody takes part: 2 lam gamma as
        step size and, as gradient norm, |z - mean x_i| / gamma of what was released, the
        participants standing for all. `converged` looks at as many rounds as it takes n users.

    Raises
    ------
    TypeError, ValueError
        When an argument or a condition does not hold; the message names it.

    Notes
    -----
    A user's state moves by its own record and by z, which is a function of earlier releases: given
    these, replacing a record changes what one user sends and nothing else. With
    b_i = x_i - (2 z - u_i) = t_i a_i, clipped to |b_i| <= gamma C, which is the prox of the clipped
    loss:

    Central: u_i = c + s_i a_i with c public and |s_i a_i| <= gamma C. Released once a round is
    V = sum_i round_q(s_i a_i) + Z: sensitivity 2 gamma C whatever the history of s_i, which is
    clamped where it is stored; std 2 gamma C sqrt(rounds) / mu. zhat = c + V / n. The first zhat
    needs no release: the paper's K is rounds + 1.

    Federated: the change of u_i is 2 lam (z - c_i), public, and 2 lam (t_i - s_i) a_i, clipped to
    4 lam gamma C. Released is the sum of the latter: sensitivity 8 lam gamma C, in at most K rounds
    of any user; std 8 lam gamma C sqrt(K) / mu. Nothing is gained from sampling: the schedule is
    drawn in advance, without the records, and known.

    Local trust, and the token: a participant's message 2 lam b_i, of norm 2 lam gamma C, is rounded
    and noised by its owner, std 4 lam gamma C sqrt(K) / mu. u_i is a sum of messages and public
    numbers. Users hold disjoint records.

    Paper: sigma^2 = 8 rounds C^2 gamma^2 / (rho n^2), 16 in place of 8 in federated mode, and
    8 K C^2 gamma^2 ln n / (rho n) for a token, rho + 2 sqrt(rho ln(1/delta)) = epsilon; noise
    lam sigma on every message. The certificate charges messages, 4 gamma C sqrt(K) / sigma in mu;
    of a single round (from z = 0) the sum, as that alone is seen: n times the claimed RDP with all
    n users.

    Silos: from a common v_j a record moves x_j by (2 C / n_j) E_K, E_K <= gamma as for hidden local
    steps (`dpkern.privacy.LocalRuns`), which needs a row bound and a loss of bounded curvature.
    Silo trust: messages round_q(2 lam (x_j - v_j)) + Z_j, of sensitivity 2 lam (2 C / n_j) E_K and
    float terms; silos hold disjoint records. Central trust: V = sum_j round_q(p_j s_j) + Z with
    u_j = c + s_j. Hidden states of neighbours part further every round, but no further than
    e_j = (2 C / n_j) gamma sqrt(1 + gamma L / 2), a term for what the inner solve leaves of the way
    to the prox, and float terms: sensitivity max_j p_j e_j (`dpkern.privacy.LocalRuns`, with
    another bound for few steps). Federated and central: the participants' changes of p_j s_j are
    summed, sensitivity max_j 4 lam p_j e_j, paid K times. Under a schedule either sensitivity is a
    64th larger, so that one serves the whole run.

    The objective is convex, and noise or not the iteration is that of Lions and Mercier with
    relaxation lam: see `dpkern.solvers.fixed_point`.
    """
    parameters = {name: value for name, value in locals().items() if name != "data"}
    if local_steps is None:
        parameters["local_steps"] = 20 if users == "silos" else 1
    with Run("admm", data, parameters) as run:
        _refuse_what_has_no_part(run)
        gamma, lam = _prox_step(run), _relaxation(run)
        objective, schedule = run.objective, _schedule(run)
        zhat = mean = np.zeros(data.d)
        z = objective.full_prox(zhat, gamma)
        alone = run.rounds == 1 and not z.any()
        advance, notes = _users(run, gamma, lam, schedule, alone=alone)

        scale = 2.0 * lam * gamma
        share = 1.0 if schedule is None else schedule.users.shape[1] / _number_of_users(run)
        for t in run.numbered_rounds():
            if schedule is not None and not schedule[t].size:
                continue  # whoever was drawn stays silent
            start = zhat if carry_zhat else z
            zhat = advance(t, start, z, lam)
            gradient = (start - zhat) / (scale * share)
            if not carry_zhat:  # then z is not the prox of mean(u), as it is at a solution
                mean = mean + (zhat - start)
                gradient = np.append(gradient, (z - objective.full_prox(mean, gamma)) / gamma)
            z = objective.full_prox(zhat, gamma)
            run.record(t, z, scale, gradient)
        claim = run.claimed
        return run.result(
            z,
            trust=trust,
            bound="upper" if NOT_SUMMED in notes else "exact",
            notes=notes,
            settled=math.ceil(1.0 / share),
            claimed=None if claim is None else claim | {"rho": _claimed_rho(claim)},
        )


def _refuse_what_has_no_part(run: Run) -> None:
    mode = run.choose("mode", "central", "federated", "token")
    silos = run.choose("users", "records", "silos") == "silos"
    trust = run.choose("trust", "central", "silo", "local")
    own = "silo" if silos else "local"
    if trust not in ("central", own):
        needed = "records" if silos else "silos"
        raise ValueError(f"trust={trust!r} needs users={needed!r} in admm: what noises is a user")
    paper = run.choose("calibration", "sound", "paper") == "paper"
    run.choose("neighbours", "replace_one")
    refuse_non_convex(run)
    if silos and paper:
        raise ValueError("calibration='paper' needs users='records', which the paper's users are")
    if not silos:
        run.choose("weights", "size")
    if not silos and run.local_steps != 1:
        raise ValueError("local_steps needs users='silos': the prox of a record is exact")
    if mode == "token" and trust != own:
        raise ValueError(f"mode='token' needs trust={own!r}: every user hears what the others send")
    if mode != "token" and paper and trust != "central":
        raise ValueError(f"calibration='paper' needs trust='central' in mode={mode!r}")
    if not isinstance(run.parameters["carry_zhat"], bool | np.bool_):
        raise TypeError("carry_zhat must be True or False")
    for name, none, modes in (
        ("participation", None, ("federated",)),
        ("max_participations", None, ("federated", "token")),
        ("graph", None, ("token",)),
        ("carry_zhat", True, ("federated", "token")),
    ):
        if mode not in modes and run.parameters[name] is not none:
            raise ValueError(f"{name} needs mode={' or '.join(map(repr, modes))}, got {mode!r}")
    if mode == "federated" and run.parameters["participation"] is None:
        raise ValueError("mode='federated' needs participation, the number of users of a round")


def _prox_step(run: Run) -> float:
    half = run.parameters["prox_step"] == "auto" and run.parameters["users"] == "silos"
    gamma = run.number_or_auto("prox_step")
    if half:  # 20 inner steps then end at their prox for any number of records
        gamma = run.parameters["prox_step"] = 0.5 * gamma
    return gamma


def _relaxation(run: Run) -> float:
    lam = positive("relaxation", run.parameters["relaxation"])
    if lam > 1.0:
        raise ValueError(f"relaxation is {lam!r}; it must be at most 1")
    if run.parameters["trust"] == "central" and run.claimed is None:
        at_most_half(run, lam)
    return lam


def _number_of_users(run: Run) -> int:
    data = run.objective.data
    return data.m if run.parameters["users"] == "silos" else data.n


def _schedule(run: Run) -> ParticipationSchedule | None:
    """Who takes part when; None is everybody in every round."""
    n, parameters = _number_of_users(run), run.parameters
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


def _users(
    run: Run, gamma: float, lam: float, schedule: ParticipationSchedule | None, *, alone: bool
) -> tuple[Users, tuple[str, ...]]:
    """The users of a mode under a trust, and what the certificate must say about them."""
    central = run.parameters["trust"] == "central"
    most = run.rounds if schedule is None else schedule.most
    if run.claimed is not None:
        alone = alone and central
        senders = run.objective.data.n if schedule is None else schedule.users.shape[1]
        paper = NoisyUsers(
            run,
            prox_step=gamma,
            relaxation=lam,
            schedule=schedule,
            sigma=lam * _paper_sigma(run, gamma, most),
            summed=senders if alone else None,
            seen_by="central" if central else "local",
        )
        return paper, () if alone else (NOT_SUMMED,) if central else (NETWORK,)
    mu = run.mu_of_one(most)
    if run.parameters["users"] == "silos":
        solve = InnerSolve(run, prox_step=gamma)
        kind = HiddenSilos if central else NoisySilos
        noted = f"{run.local_steps} inner steps leave at most {1.05 * solve.remaining:.2g} of the "
        said = (noted + "way to the prox",) + (HIDDEN if central else SEEN,) * (mu is not None)
        return kind(run, solve, relaxation=lam, mu=mu, schedule=schedule), said
    if not central:
        local = NoisyUsers(run, prox_step=gamma, relaxation=lam, schedule=schedule, mu=mu)
        return local, ()
    if schedule is None:
        return CentralUsers(run, prox_step=gamma, mu=mu), ()
    return SampledUsers(run, prox_step=gamma, mu=mu, schedule=schedule, relaxation=lam), ()


def _claimed_rho(claim: dict[str, float]) -> float:
    """rho with rho + 2 sqrt(rho ln(1/delta)) = epsilon: the authors' code."""
    log_term = math.log(1.0 / claim["delta"])
    return (math.sqrt(log_term + claim["epsilon"]) - math.sqrt(log_term)) ** 2


def _paper_sigma(run: Run, gamma: float, most: int) -> float:
    """sigma of the paper's table for its claim a rho of the RDP of order a."""
    n, mode = run.objective.data.n, run.parameters["mode"]
    assert run.claimed is not None
    if mode == "token":
        per_rho = 8.0 * most * math.log(n) / n
    else:
        per_rho = (8.0 if mode == "central" else 16.0) * run.rounds / n**2
    return run.clip * gamma * math.sqrt(per_rho / _claimed_rho(run.claimed))
