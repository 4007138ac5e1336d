"""What the arguments that solvers share mean, said once."""

import inspect
import re
import typing
from collections.abc import Callable
from typing import TypeVar

Solver = TypeVar("Solver", bound=Callable[..., object])

SHARED = """\
data : SiloData
    N records in m silos.
budget : Budget or None
    Total budget of the run, for one record; None runs the same code without noise and certifies
    nothing.
clip : float
    Bound C of one record's gradient in l2 norm; needed with a budget, else infinite.
hess_clip : float
    Bound B of one record's Hessian phi'' x x^T in Frobenius norm. By default phi''max
    row_bound^2, which clips nothing; needed with a budget where that is infinite.
loss : str, Loss or Oracle
    See `dpkern.losses`; where the solver takes it, a model of `dpkern.oracles`.
l2 : float
    Penalty (l2/2) |w|^2.
l1 : float
    Penalty l1 |w|_1.
regularizer : (name or Regularizer, strength) or None
    A penalty, such as ("pl", 0.01), or a constraint, such as ("simplex", 1.0), whose strength is of
    no effect (`dpkern.regularizers`). All but "pl" act by their prox, and not beside l1; with a
    budget they are for steps that are released or noisy, not for hidden ones.
weights : {"size", "uniform"}
    Silo weights p_j = n_j / N or 1 / m.
trust : {"silo", "central", "shuffle"}
    Who is believed: a silo by itself alone, which adds noise to its messages; the aggregator, which
    adds it to their sum; or a shuffler of the records' messages, with binomial noise.
neighbours : {"replace_one", "add_remove"}
    What neighbouring data sets differ in: the values of one record, numbers of records being
    public, or whether one record is there, which halves sensitivities and hides those numbers.
public_size : int, sequence of m ints or None
    With "add_remove" a public number of records of every silo, or of all together, which will do
    under central trust with weights "size", but not for the stochastic solvers. It stands for the
    data's own in weights, means, noise, grids and everything that the result says. It need not be
    exact: sums of up to twice as many records are taken whole, and larger ones cut off where they
    do not fit.
sampling : {"full", "without_replacement", "poisson", "one_pass", "cyclic"}
    Every silo's batches: all records; secret ones of fixed size, or under "add_remove" Poisson
    ones, accounted for by dp-accounting (pip install 'dpkern[accounting]'), for a budget of epsilon
    and delta; or those in turn of a random order of its records, disjoint ones, or starting over
    where it ends ("cyclic"): a record pays as often as it comes up.
batch_size : int or None
    Records K of a batch in every silo, for Poisson batches on average; None for full ones.
participation : int or None
    How many silos M of the m take part in a round, drawn in advance and public; None means all.
returns : {"last", "random", "average"}
    The iterate that the result holds.
penalize_intercept : bool
    Whether the penalties act on the intercept too.
rng : None, int or NoiseStream
    None is the operating system's entropy; an int is reproducible and not private.
n_threads : int or None
    None means the cores that the process may use. Results do not depend on it.
progress : bool
    Show a progress bar.
callback : callable or None
    callback(round, release) after every round.
monitor : SiloData, "train" or None
    Public records on which objective and accuracy are kept in the history, or "train" as a
    non-private diagnostic.
"""

_BEGIN, _END = "Parameters\n----------\n", "\n\nReturns\n"


def documented(solver: Solver) -> Solver:
    """Complete a solver's docstring: every argument of its signature, in order.

    What its section of parameters describes stays; the others are taken from `SHARED`.

    Raises
    ------
    KeyError
        When an argument is described nowhere.
    """
    if solver.__doc__ is None:  # python -OO
        return solver
    before, rest = inspect.cleandoc(solver.__doc__).split(_BEGIN)
    own, after = rest.split(_END)
    entries = _entries(SHARED) | _entries(own)
    arguments = inspect.signature(solver).parameters.values()
    text = "\n".join(_with_choices(entries[a.name], a.annotation) for a in arguments)
    solver.__doc__ = f"{before}{_BEGIN}{text}{_END}{after}"
    return solver


def _with_choices(entry: str, annotation: object) -> str:
    """The entry with the choices of this solver: others offer more of them."""
    if typing.get_origin(annotation) is not typing.Literal:
        return entry
    choices = ", ".join(f'"{choice}"' for choice in typing.get_args(annotation))
    return re.sub(r" : \{[^}]*\}", f" : {{{choices}}}", entry, count=1)


def _entries(text: str) -> dict[str, str]:
    """Entries of a section of parameters by their names."""
    entries: dict[str, str] = {}
    for line in text.splitlines():
        if not line.startswith(" "):
            name = line.partition(" : ")[0]
            entries[name] = line
        else:
            entries[name] += f"\n{line}"
    return entries
