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
gradient steps, and means are weighted (`dpkern.solvers.releases.admm_silos`).
"""

import math
from typing import Any, Literal

from dpkern.papers import noise
from dpkern.solvers.base.declaration import solver
from dpkern.solvers.base.options import Count, CountOrNone
from dpkern.solvers.base.result import SolverResult
from dpkern.solvers.base.run import Run
from dpkern.solvers.releases.admm_users import (
    NOT_SUMMED,
    choose_schedule,
    choose_users,
    number_of_users,
    prox_step_of,
    refuse_what_does_not_apply,
    relaxation_of,
)


@solver(trusts=("central", "local", "silo"), paper=("central", "local"))
def admm(
    run: Run,
    *,
    rounds: Count = 300,
    users: Literal["records", "silos"] = "records",
    local_steps: CountOrNone = None,
    prox_step: float | str = "auto",
    relaxation: float = 0.5,
    mode: Literal["central", "federated", "token"] = "central",
    participation: CountOrNone = None,
    max_participations: CountOrNone = None,
    graph: Any = None,
) -> SolverResult:
    """Consensus ADMM on the clipped objective, a record or a silo being a user.

    The loss must be convex; all penalties are in r. A user noises what it sends under trust "local"
    where users are records, and "silo" where they are silos; a token needs that. Weights are for
    silos as users; records count alike.

    Parameters
    ----------
    rounds : int
        Number of released changes of z; of a token, hops.
    users : {"records", "silos"}
        Who the users are: every record of its own, whatever its silo, or every silo with the
        mean of its clipped losses. Either way neighbours differ in one record.
    local_steps : int or None
        With silos K, the gradient steps of size 1 / (L + 1/gamma) that stand for a prox, 20 by
        default: they end within (gamma L / (1 + gamma L))^K gamma C of it, which the
        certificate repeats as a number. The sensitivity is that of the steps, whatever their
        end.
    prox_step : float or "auto"
        gamma > 0. "auto" is 1 / (L + l2), L = phi''max row_bound^2; half of that with silos.
    relaxation : float
        lam in (0, 1]; at most 1/2 with a clip norm, but under local trust and with calibration
        "paper".
    mode : {"central", "federated", "token"}
        Who takes part in a round: every user, `participation` of them drawn uniformly without
        replacement, or the one that holds the token.
    participation : int or None
        Users of a round, in federated mode.
    max_participations : int or None
        A user that has taken part so often stays silent, in federated and token mode. The
        busiest user of the schedule, drawn in advance, decides the noise either way.
    graph : sparse matrix or None
        Symmetric adjacency, a row for every user, of a connected graph on which the token
        walks, to any neighbour with equal probability; None is the complete graph. Public.

    Notes
    -----
    A user's state moves by its own record and by z, a function of earlier releases: given these,
    replacing a record changes what one user sends and nothing else. With b_i = x_i - (2 z - u_i) =
    t_i a_i, clipped to |b_i| <= gamma C, which is the prox of the clipped loss, are released:

    Central: V = sum_i round_q(s_i a_i) + Z, u_i = c + s_i a_i with c public: sensitivity 2 gamma C
    whatever the history of s_i, which is clamped where it is stored. zhat = c + V / n. The first
    zhat needs no release: the paper's K is rounds + 1.

    Federated: the sum of 2 lam (t_i - s_i) a_i, clipped to 4 lam gamma C: sensitivity 8 lam gamma
    C, in at most K rounds of any user. The schedule is drawn in advance, without the records, and
    known: nothing is gained from sampling.

    Local trust, and the token: messages 2 lam b_i, rounded and noised by their owners: sensitivity
    4 lam gamma C. u_i is a sum of messages and public numbers. Users hold disjoint records.

    Silos: see `dpkern.solvers.releases.admm_silos`. Calibration "paper": lam sigma on every message
    (`dpkern.papers.noise.admm`). The certificate charges messages, 4 gamma C sqrt(K) / sigma in mu;
    of a single round (from z = 0) the sum, as that alone is seen: n times the claimed RDP.

    The history holds an entry for every round in which somebody takes part: 2 lam gamma as step
    size and, as gradient norm, |z - mean x_i| / gamma of what was released, the participants
    standing for all. `converged` looks at as many rounds as it takes n users.
    """
    refuse_what_does_not_apply(run)
    gamma, lam = prox_step_of(run), relaxation_of(run)
    objective, schedule = run.objective, choose_schedule(run)
    zhat = objective.start()
    z = objective.full_prox(zhat, gamma)
    alone = rounds == 1 and not z.any()
    advance, notes = choose_users(run, gamma, lam, schedule, alone=alone)

    scale = 2.0 * lam * gamma
    share = 1.0 if schedule is None else schedule.users.shape[1] / number_of_users(run)
    for t in run.numbered_rounds():
        if schedule is not None and not schedule[t].size:
            continue  # whoever was drawn stays silent
        before, zhat = zhat, advance(t, zhat, z, lam)
        z = objective.full_prox(zhat, gamma)
        run.record(t, z, scale, (before - zhat) / (scale * share))
    claim = run.claimed
    return run.result(
        z,
        bound="upper" if NOT_SUMMED in notes else "exact",
        notes=notes,
        settled=math.ceil(1.0 / share),
        claimed=None if claim is None else claim | {"rho": noise.admm_rho(claim)},
    )
