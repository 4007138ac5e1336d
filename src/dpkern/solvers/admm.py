"""Private consensus ADMM over records or silos: centralised, federated or by a token.

Cyffers, Bellet, Basu, "From noisy fixed-point iterations to private ADMM for centralized and
federated learning", ICML 2023; algorithms 8, 10 and 12 of Basu's slides on it, whose formulas are
those of calibration "paper". For min_z (1/n) sum_i f_i(z) + r(z):

    u_i = 0 for every user i;  zhat = 0;  z = prox_{gamma r}(zhat)
    for k = 1..rounds:
        for every user i of the round:            everybody | a random sample | the token's holder
            x_i = prox_{gamma f_i}(2 z - u_i)
            u_i = u_i + 2 lam (x_i - z)
        zhat = mean_i u_i
        z = prox_{gamma r}(zhat)
    return z
    sound, central:  noise on the sum of what users send
    sound, local:    u_i = u_i + 2 lam (x_i - z) + Z_i, a message that everybody sees
    paper:           u_i = u_i + 2 lam (x_i - z + eta_i / 2), whatever the mode

f_i is the clipped loss of record i. The paper calibrates the users' independent noises as if all of
them were one noise on the mean; the certificate states the guarantee that they really give. Silos
as users extend the paper (`dpkern.solvers.releases.admm_silos`).
"""

import math
from typing import Any, Literal

from dpkern.solvers.base import AUTO, Count, Run, SolverResult, solver
from dpkern.solvers.base.options import CountOrNone, UpToOne
from dpkern.solvers.base.settings import implicit
from dpkern.solvers.releases.admm_users import NOT_SUMMED, Consensus, resolve_consensus


@solver(
    trusts=("central", "local", "silo"), paper=("central", "local"), settings=implicit,
    resolve=resolve_consensus, error=(0.19, 0.95), seconds=(1.1, 0.0), of_silos={"users": "silos"},
    audit={"rounds": 4, "prox_step": 1e-5}, weights=False,
)  # fmt: skip
async def admm(
    run: Run,
    *,
    rounds: Count = AUTO,
    users: Literal["records", "silos"] = "records",
    local_steps: CountOrNone = None,
    prox_step: float | str = "auto",
    relaxation: UpToOne = 0.5,
    mode: Literal["central", "federated", "token"] = "central",
    participation: CountOrNone = None,
    max_participations: CountOrNone = None,
    graph: Any = None,
) -> SolverResult:
    """Consensus ADMM on the clipped objective, with records or silos as users.

    The loss must be convex; all penalties are in r. Users add noise to their own messages under
    trust "local" (records) and "silo" (silos), which mode "token" requires. Silo weights apply only
    to silos as users.

    Parameters
    ----------
    users : {"records", "silos"}
        Whether every record is a user, whatever its silo, or every silo, with the mean of its
        clipped losses. Either way neighbours differ in one record.
    local_steps : int or None
        With silos, the number K of gradient steps of size 1 / (L + 1/gamma) that approximate
        the prox, 20 by default: their error is at most (gamma L / (1 + gamma L))^K gamma C,
        which the certificate states as a number.
    prox_step : float or "auto"
        gamma > 0. "auto" follows from public numbers, with clip norm and rounds.
    relaxation : float
        lam in (0, 1]; with a clip norm under central trust and sound calibration, at most 1/2.
    mode : {"central", "federated", "token"}
        Who participates in a round: every user, `participation` of them drawn uniformly without
        replacement, or the holder of the token, which moves once a round.
    participation : int or None
        Number of users in a round, in federated mode.
    max_participations : int or None
        Cap on the participations of a user, in federated and token mode; beyond, the user stays
        silent. The noise is for the busiest user of the schedule, which is drawn in advance.
    graph : sparse matrix or None
        Public symmetric adjacency matrix, a row per user, of the connected graph on which the
        token walks to a uniformly random neighbour; None is the complete graph.

    Notes
    -----
    A user's state depends on its own record and on z, a function of earlier releases: given these,
    replacing a record changes what one user sends and nothing else. Let b_i = x_i - (2 z - u_i) =
    t_i a_i, |b_i| <= gamma C for the prox of the clipped loss. The releases are:

    Central: V = sum_i round_q(s_i a_i) + Z, u_i = c + s_i a_i with c public: sensitivity 2 gamma C
    whatever the history of s_i, which is clamped where it is stored. zhat = c + V / n. The first
    zhat needs no release: the paper's K is rounds + 1.

    Federated: the sum of 2 lam (t_i - s_i) a_i, in at most K rounds of any user, clipped to lam
    gamma C / sqrt(K): sensitivity twice that. The user sends the rest later, and no fixed point
    moves (docs/proofs/changes.md). The participation schedule is drawn in advance independently of
    the records and public, so that sampling amplifies nothing.

    Local trust, and the token: messages 2 lam b_i, rounded and noised by their owners: sensitivity
    4 lam gamma C. u_i is a sum of messages and public numbers. Users hold disjoint records.

    Silos: see `dpkern.solvers.releases.admm_silos`. Calibration "paper": lam sigma on every message
    (`dpkern.papers.noise.admm`). The certificate charges messages, 4 gamma C sqrt(K) / sigma in mu;
    for a single round (from z = 0) it charges their sum, the only release: n times the claimed RDP.

    The history has an entry for every round with a participant: 2 lam gamma as step size and
    |z - mean x_i| / gamma as gradient norm, estimated from the participants' changes, which the
    clip makes smaller at first. `converged` checks as many rounds as n users need to participate.
    """
    consensus, objective = Consensus(run), run.objective
    gamma, lam, share = consensus.prox_step, consensus.relaxation, consensus.share
    run.qualify(*consensus.notes, upper=NOT_SUMMED in consensus.notes)
    run.claim, run.settled = consensus.claimed, math.ceil(1.0 / share)
    zhat, done = consensus.compiled_rounds(run.first_model())
    z = objective.full_prox(zhat, gamma)
    for t in run.numbered_rounds(done):
        if consensus.silent(t):
            continue
        previous, zhat = zhat, await consensus.advance(t, zhat, z, lam)
        z = objective.full_prox(zhat, gamma)
        run.record(t, z, 2.0 * lam * gamma, (previous - zhat) / (2.0 * lam * gamma * share))
    return run.result(z)
