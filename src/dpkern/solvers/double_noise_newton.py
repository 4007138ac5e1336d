"""Newton's method with noise on the gradient and on the direction.

Ganesh, Haghifam, Steinke, Thakurta, "Faster differentially private convex optimization via
second-order methods", NeurIPS 2023:

    w = 0
    for t = 1..T:
        g~ = grad J(w) + N(0, s_g^2 I)
        c~ = max( tr H(w) + N(0, s_c^2), 0 ),      H the mean Hessian of the clipped losses
        l0 = max( (32 f^2 c~ / mu_p^2)^(1/3), 4 b ),    b = B / N
        add:   p = (H + l2 I + l0 I)^-1 g~,        D_p = |g~| b / (l0 (l0 + b)),  f = b
        clip:  p = max(H + l2 I, l0)^-1 g~,        D_p = |g~| f / l0^2
        f = sqrt(2) b for a record that is replaced, b for one that is added or removed
        w = w - (p + N(0, (D_p / mu_p)^2 I))
    return w

No matrix is released: its noise would be d times larger in dimension than that of the direction,
which shrinks with the gradient.
"""

import functools
import math
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpkern import kernels
from dpkern.data import SiloData
from dpkern.losses import Loss
from dpkern.privacy import Budget, NoiseStream, split_budget
from dpkern.privacy._exact import round_up, sqrt_up
from dpkern.privacy.mechanisms.grids import MAX_RECORDS, records_of
from dpkern.privacy.mechanisms.messages import GaussianMessages
from dpkern.solvers._docs import documented
from dpkern.solvers._gradient import NoisyMeanGradient
from dpkern.solvers._newton import hessian_bound
from dpkern.solvers._objective import PublicSize
from dpkern.solvers._result import SolverResult
from dpkern.solvers._run import Callback, Monitor, Run

FloatArray = NDArray[np.float64]

# Shares of the squared budget of a round: gradient, trace, direction.
_SHARES = (0.5, 0.05, 0.45)

SOLVED = (
    "solving takes LAPACK and BLAS to be conventional (no Strassen-like products, no emulated "
    "doubles)"
)
CLIPPED = (
    "variant 'clip' takes LAPACK's symmetric eigensolver to converge, and eigenvalues and vectors "
    "to be backward stable within 16 (d + 1)^2 2^-53 of the matrix's norm, in Frobenius norm"
)


@documented
def double_noise_newton(
    data: SiloData,
    *,
    budget: Budget | None,
    clip: float | None = None,
    hess_clip: float | None = None,
    loss: str | Loss = "logistic",
    l2: float = 0.0,
    rounds: int = 10,
    variant: Literal["add", "clip"] = "add",
    weights: Literal["size", "uniform"] = "size",
    trust: Literal["central"] = "central",
    calibration: Literal["sound"] = "sound",
    neighbours: Literal["replace_one", "add_remove"] = "replace_one",
    public_size: PublicSize = None,
    penalize_intercept: bool = True,
    rng: int | NoiseStream | None = None,
    n_threads: int | None = None,
    progress: bool = False,
    callback: Callback | None = None,
    monitor: Monitor = None,
) -> SolverResult:
    r"""Newton's method on the clipped objective, the direction released instead of the Hessian.

    Parameters
    ----------
    loss : str or Loss
        A convex loss; see `dpkern.losses`.
    rounds : int
        Number of rounds T, of three releases each.
    variant : {"add", "clip"}
        Whether l0 is added to all eigenvalues of the Hessian or truncates them from below.
    trust : {"central"}
        The aggregator is believed.
    calibration : {"sound"}
        The paper's constants are those of "sound" with neighbours "add_remove", or above them.

    Returns
    -------
    result : SolverResult

    Raises
    ------
    TypeError, ValueError
        When an argument or a condition does not hold; the message names it.

    Notes
    -----
    Released, three times a round, to whoever sees the aggregate; om = max_k p_k / n_k.

    1. The noisy mean gradient, as in `gradient_descent`: the sum has sensitivity 2 C, or C where a
       record is added or removed.
    2. The trace of the summed Hessian. One record's is in [0, B]: sensitivity B.
    3. The direction p = f(A) g~, A the mean Hessian and penalty, g~ and l0 released before. A
       record's share of A is positive semi-definite, of rank one and of norm b = B om at most.
       "add", f(x) = 1 / (x + l0): with M = A + l0 I less one record's share, M^-1 - (M + b v v')^-1
       is positive semi-definite and at most b / (l0 (l0 + b)) (Sherman, Morrison). That is what
       adding a record does, and all that M = l0 I allows. Replacing one is the difference of two
       such matrices, which is no larger than the larger of them: the same constant.
       "clip", f(x) = 1 / max(x, l0) has Lipschitz constant 1 / l0^2, on symmetric matrices in
       Frobenius norm too, and replacing a record moves A by sqrt(2) b in that norm, adding or
       removing one by b.
       Where every coordinate is penalised, l2 adds to l0, or is a second lower bound.
       What solving in doubles adds is bounded by the backward error of Cholesky's method,
       (A + E) p = g~ with |E| <= 4 d (3 d + 1) 2^-53 |A| (Higham, Accuracy and stability, theorem
       10.4), and charged; the like is assumed of the eigensolver, and the certificate says so.
       Where sizes are not public, |A| is bounded by what was released of its trace: that plus 14
       deviations of its noise and 2 B om.

    Steps are whole Newton steps, as in the paper: with losses whose curvature jumps, such as the
    smoothed hinge, they can go round in circles, noise or not.

    The shares of mu^2 are 50 % for gradients, 5 % for traces and 45 % for directions.
    """
    parameters = {name: value for name, value in locals().items() if name != "data"}
    with Run("double_noise_newton", data, parameters | {"l1": 0.0, "regularizer": None}) as run:
        run.choose("trust", "central")
        run.choose("calibration", "sound")
        run.choose_neighbours()
        run.choose("variant", "add", "clip")
        if not run.objective.phi.convex:
            raise ValueError(
                f"double_noise_newton needs a convex loss, which {run.objective.phi.name!r} is "
                "not: the Hessian of a record must be positive semi-definite"
            )
        B = hessian_bound(run, hess_clip)
        run.resolve(hess_clip=B)
        mu_g = mu_c = mu_p = None
        if run.budget is not None:
            mu_g, mu_c, mu_p = split_budget(run.budget.mu, _SHARES, (run.rounds,) * 3)
        gradient = NoisyMeanGradient(run, trust=trust, mu=mu_g)
        newton = _Direction(run, variant=variant, hess_clip=B, trace_mu=mu_c, mu=mu_p)
        w = np.zeros(data.d)
        for t in run.numbered_rounds():
            g = gradient(w) + run.objective.penalty_gradient(w)
            w = w - newton(w, g)
            run.record(t, w, 1.0, g)
        notes = (SOLVED,) if variant == "add" else (SOLVED, CLIPPED)
        return run.result(w, trust=trust, notes=notes if budget else ())


class _Direction:
    """The released direction at a public model, from a released gradient."""

    def __init__(
        self,
        run: Run,
        *,
        variant: str,
        hess_clip: float,
        trace_mu: float | None,
        mu: float | None,
    ) -> None:
        objective, data = run.objective, run.objective.data
        self._run, self._add, self._hess_clip, self._mu = run, variant == "add", hess_clip, mu
        self._penalty = objective.l2 * objective.penalized
        self._least = float(self._penalty.min())  # eigenvalue of the mean Hessian and penalty
        # Backward error of forming and solving, relative to |A| + l0.
        self._relative = 16.0 * (data.d + 1) ** 2 * 2.0**-53
        self._moved = 1.0 if self._add or run.sizes_are_hidden else math.sqrt(2.0)  # f / b
        self._records, self._trace_bound = None, data.n
        self._trace_moved, self._not_seen = hess_clip, 0.0
        if run.sizes_are_hidden:
            # A silo's sum of very many records is rounded to a double, and their sum once a silo.
            rounded = data.m + data.d + 2
            self._relative += rounded * 2.0**-53
            self._records, self._trace_bound = records_of(objective.n), MAX_RECORDS
            self._trace_moved *= 1.0 + rounded * 2.0**-53 * 2.0 * MAX_RECORDS
            if trace_mu is not None:
                # Its noise is (1 + 1/32) / mu at most: 14 deviations, and the neighbour's record.
                self._not_seen = (15.0 / trace_mu + 2.0) * self._trace_moved
        if mu is not None:
            # What cannot work with public numbers is refused before anything is released.
            kernels.hessian_row_grid(self._records or data.n, hess_clip, data.d)
            self._moved_by_one(self._regularisation(0.0), 0.0)
        messages = functools.partial(GaussianMessages, run.channel("central"))
        self._trace = messages(what="trace of the summed Hessian", dim=1, mu=trace_mu)
        self._release = messages(what="Newton direction", dim=data.d, mu=mu)

    def __call__(self, w: FloatArray, g: FloatArray) -> FloatArray:
        run, objective = self._run, self._run.objective
        om = objective.record_weight()
        with run.clock("kernels"):
            H = kernels.glm_hessian(
                objective.data,
                w,
                loss=objective.phi,
                hess_clip=self._hess_clip,
                silo_weight=objective.silo_weight(),
                records=self._records,
                n_threads=objective.n_threads,
            ).sum(axis=0)
        with run.clock("noise"):
            trace = om * self._released_trace(np.trace(H))
        l0 = self._regularisation(trace) if self._mu else self._without_noise(trace)
        A, floor = om * H + np.diag(self._penalty), l0
        if self._add:
            # All eigenvalues are above l0 / 2: no truncation, and so a Cholesky solve.
            A, floor = A + l0 * np.eye(g.size), 0.5 * l0
        with run.clock("kernels"):
            p = kernels.newton_direction(
                A[np.newaxis], g[np.newaxis], floor=floor, n_threads=objective.n_threads
            )
        with run.clock("noise"):
            return self._released_direction(p, g, l0, trace)

    def _released_trace(self, trace: float) -> float:
        if self._mu is None:
            return float(trace)
        bound = round_up(self._trace_bound * Fraction(self._hess_clip))
        noisy = self._trace.release(
            np.array([[trace]]), sensitivity=[self._trace_moved], bound=bound
        )
        return max(float(noisy[0]), 0.0)

    @property
    def _largest(self) -> float:
        """b: Frobenius norm of one record's share of A, at most."""
        return self._hess_clip * self._run.objective.record_weight()

    def _size(self, trace: float) -> float:
        """|A| at most: by the number of records or, where that is hidden, by the released trace."""
        objective = self._run.objective
        if self._run.sizes_are_hidden:
            return trace + self._not_seen * objective.record_weight() + objective.l2
        return self._largest * objective.n * (1.0 + 2.0**-40) + objective.l2

    def _regularisation(self, trace: float) -> float:
        """l0 of the authors' code, where b is 1 / (4 N), with room for the errors of solving."""
        assert self._mu is not None
        moved = self._largest * self._moved
        wanted = float(np.cbrt(32.0 * trace)) * (moved / self._mu) ** (2.0 / 3.0)
        return max(wanted, 4.0 * self._largest, 64.0 * self._relative * self._size(trace))

    def _without_noise(self, trace: float) -> float:
        """As little as the solution can be trusted with; 1 for a matrix of zeros."""
        return 64.0 * self._relative * (trace + self._run.objective.l2) or 1.0

    def _moved_by_one(self, l0: float, trace: float) -> tuple[Fraction, Fraction]:
        """|p - p'| / |g| for the doubles computed, and the least of |A g| / |g|, error included."""
        b = Fraction(self._run.objective.record_weight()) * Fraction(self._hess_clip)
        b *= 1 + Fraction(1, 2**50)  # A is formed in doubles
        wrong = Fraction(self._relative) * (Fraction(self._size(trace)) + Fraction(l0))
        if self._add:
            low = Fraction(l0) + Fraction(self._least)
            exact = b / (low * (low + b))
        else:
            low = max(Fraction(l0), Fraction(self._least))
            exact = Fraction(math.nextafter(self._moved, 2.0)) * b / low**2
        moved = exact + 2 * wrong / (low * (low - wrong))
        if moved > Fraction(5, 4) * exact:
            raise ValueError(
                "rounding errors of solving would exceed a quarter of the direction's sensitivity: "
                f"d = {self._penalty.size} or l2 = {self._run.objective.l2!r} is too large for "
                "silos of these sizes"
            )
        return moved, low - wrong

    def _released_direction(
        self, p: FloatArray, g: FloatArray, l0: float, trace: float
    ) -> FloatArray:
        if self._mu is None:
            return self._release.release(p)
        norm = sqrt_up(sum((Fraction(x) ** 2 for x in g.tolist()), Fraction(0)))
        if norm == 0.0:  # the direction is 0, whatever the records
            return np.zeros_like(g)
        moved, least = self._moved_by_one(l0, trace)
        return self._release.release(
            p,
            sensitivity=[round_up(moved * Fraction(norm))],
            bound=round_up(Fraction(norm) / least),
        )
