"""Options that commands share, the project file, parsing of values, and messages in their words."""

import argparse
import math
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, Self

from dpkern._numbers import did_you_mean, is_number, parse_integer, parse_number, refuse_unknown
from dpkern.cli import _data
from dpkern.cli._output import Line
from dpkern.models.losses import LOSS_OF_TASK, LOSSES, LogLink, Loss, NegativeBinomial
from dpkern.models.ordinal import AllThreshold, CumulativeLogit
from dpkern.models.penalties import PENALTIES, SMOOTH, Constraint, GroupLasso, make_penalty
from dpkern.models.terms import Penalty, PenaltySum
from dpkern.privacy.certificate.certificate import NAMES, checked_texts
from dpkern.solvers import SOLVERS
from dpkern.solvers.base.automatic import CHOSEN
from dpkern.solvers.base.options import SHARED, Option, kind_of

#: The file that says what fits are called, who answers for them, and their ledger.
PROJECT = "dpkern.toml"
_TEXTS = (*NAMES, "bounds")

#: What --loss says for ordered classes, whose models have losses of their own.
ORDERED = {"ordered": AllThreshold, "cumulative_logit": CumulativeLogit}
# Arguments of solvers with an option of their own; the others are given by --set.
_OWN_OPTIONS = ("loss", "clip", "l2", "l1", "rounds", "trust")


# Arguments of readers and of `SiloData`; those of solvers come from the solvers.
_OF_DATA = (
    *("target", "silo_column", "person", "header", "sep", "row_bound", "target_bound"),
    *("max_records", "feature_range", "task", "classes", "mean_range"),
    *("epsilon", "delta"),
)
_RENAMED = {
    **{"how": "--split", "m": "--silos", "test_fraction": "--test-share", "path": "--out"},
    **{"X": "the features", "y": "the target", "accountant": "--ledger", "n_jobs": "--jobs"},
}
_PHRASES = {
    "task='multiclass' and classes": "--classes A,B,C",
    "name both by classes=(negative, positive)": "name both by --classes NEGATIVE,POSITIVE",
    "link must be": "--loss must be",
    "a max_target": "a bound of targets (--target-bound 0,Y)",
    "what sep says": "what --sep says",
    "inference=True": "--inference",
    "inference must be False": "--inference must be left out",
    "as sep says": "as --sep says",
    "fields by sep": "fields by --sep",
    "n_features must be": "--n-features must be",
    "sparse=False": "--no-sparse",
    "header=True": "--header",
    "header=False": "--no-header",
    "intercept=False": "--no-intercept",
    "intercept=True": "a fit without --no-intercept",
}
# Where an argument whose name is a common word is named, and not the word meant.
_BEFORE = r"(?:^|(?<=; )|(?<=needs ))"
_AFTER = r"(?= is | must | needs | goes | beside | has | was | holds | '|[,;.](?!\w)|$)"


# How the text of an argument of these types is read.
_PARSERS: dict[Callable[[str], Any], Callable[[str], Any]] = {
    int: parse_integer,
    float: parse_number,
}


# The command line gives the records, the budget and the noise in options of its own, and shows
# progress itself.
NOT_SETTABLE = ("data", "budget", "model", "accountant", "rng", "progress", "callback")
AUTO = "auto"
# The forms that the command line takes: group_lasso has more parameters than a strength.
_PENALTIES = {
    name: name if issubclass(kind, Constraint) else f"{name}:STRENGTH"
    for name, kind in (PENALTIES | SMOOTH).items()
    if kind is not GroupLasso
}


_OF_STUDIES = ("plan", "keys", "journal", "insecure", "deadline")
DEADLINE = 600.0  #: seconds that silos may take


class UsageError(ValueError):
    """An error of the command line itself, which needs no translation."""


class Parser(argparse.ArgumentParser):
    """A parser that raises its errors, with suggestions for unknown options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for kind, parse in _PARSERS.items():
            self.register("type", kind, parse)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")

    def refuse_unknown(self, rest: list[str], argv: list[str]) -> None:
        for word in rest:
            known = self._option_string_actions if word.startswith("-") else ()
            flag, _, given = word.partition("=")
            name = flag.removeprefix("--").replace("-", "_")
            if "--set" in known and any(name in settable(solver) for solver in SOLVERS):
                given = given or next(iter(argv[argv.index(word) + 1 :]), "VALUE")
                self.error(f"unrecognized argument {word}; give it as --set {name}={given}")
            if flag == "--schema" and any(action.dest == "model" for action in self._actions):
                self.error(f"unrecognized argument {word}: a model has its schema, if there is one")
            self.error(f"unrecognized argument {word}{did_you_mean(flag, known)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = list(action.choices)
            close = did_you_mean(str(value), choices) or f"; choose from {', '.join(choices)}"
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}{close}")


def add_column_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("columns of CSV files").add_argument
    add("--target", metavar="COLUMN", help="name, or index from 0 (default: the last)")
    add("--silo-column", metavar="COLUMN", help="whose record it is: name, or index from 0")
    add("--person", metavar="COLUMN", help="the id of the record's person: name, or index from 0")
    header = "whether the first row holds names (default: detected)"
    add("--header", action=argparse.BooleanOptionalAction, default=None, help=header)
    sep = "between the columns: a character, or the word tab (default: detected)"
    add("--sep", type=lambda text: "\t" if text == "tab" else text, metavar="CHAR", help=sep)


def add_data_arguments(parser: argparse.ArgumentParser, silos: int) -> None:
    group = parser.add_argument_group("data, all of it taken as public but the records")
    group.set_defaults(default_silos=silos)
    add = group.add_argument
    how = f"split the records over M silos (default: as the data say, else {silos})"
    add("--silos", type=count, metavar="M", help=how)
    how = "even, random, by_label, two_groups=RATIO, mixed=SHARE or dirichlet=CONCENTRATION"
    add("--split", metavar="HOW", help=f"{how} (default: {_data.SPLIT})")
    add("--seed", type=int, default=0, help="of the splits only; never of the noise")
    what = "of LIBSVM text, whose rows may have fewer (default: the largest index in the records)"
    add("--n-features", type=count, metavar="P", help=what)
    what = "whether features are kept in CSR (default: those of LIBSVM text, and of .npz in CSR)"
    add("--sparse", action=argparse.BooleanOptionalAction, default=None, help=what)
    what = "public description of the raw columns, as dpkern schema drafts one; it says all that "
    add("--schema", metavar="FILE.json", help=f"{what}the following options say")
    tasks = (*LOSS_OF_TASK, "multiclass")
    add("--task", choices=tasks, help="default: as the labels say")
    what = "public labels: two, the negative one first, or several (default: the two of the data)"
    add("--classes", type=list_of(str), metavar="A,B", help=what)
    add(
        "--feature-range",
        metavar="FILE",
        help="public bounds of the columns, which are mapped to [-1, 1]: CSV with a row "
        "name,lo,hi for each feature, or rows lo,hi in their order",
    )
    add(
        "--row-bound",
        type=float,
        help="positive: longer rows are shortened to it; inf is none (default, where Python has "
        "none: the longest row inside the feature range of dense data, "
        f"sqrt(features + intercept); {_data.ROW_BOUND:g} without one or for sparse data)",
    )
    what = (
        "bound of the targets' size in a regression, or bounds --target-bound=LO,HI: other targets "
        "are clipped to them (default: none)"
    )
    add("--target-bound", type=target_bound, metavar="B", help=what)
    what = "with --person: the first K records of a person are used, and protected together"
    add("--max-records", type=count, metavar="K", help=what)
    what = "fit no constant beside the features (Python fits one with intercept=True only)"
    add("--no-intercept", action="store_true", help=what)
    add_column_arguments(parser)


def add_solver_arguments(parser: argparse.ArgumentParser, *, ordered: bool = False) -> None:
    title = "solver, with its own defaults where none is stated"
    add = parser.add_argument_group(title).add_argument
    what = (
        "default: logistic; squared for regression; softmax for perceptrons and several classes; "
        "cloglog, or logistic, for times to an event"
    )
    what += "; of classes in their order ordered or cumulative_logit" if ordered else ""
    add("--loss", choices=(*LOSSES, *(ORDERED if ordered else ())), help=what)
    add("--clip", type=auto_or(float), help="bound of a record's gradient (default: auto)")
    add("--l2", type=float, help="strength of the penalty |w|^2 / 2")
    add("--l1", type=float, help="strength of the penalty |w|_1")
    add("--rounds", type=auto_or(int), help="number of rounds (default: auto)")
    add_option_arguments(parser)
    seed = "reproducible noise: not private, for tests"
    add("--noise-seed", type=int, metavar="N", help=seed)


def add_option_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any other option of the solver, such as n_threads=1; may be repeated; "
        "dpkern info SOLVER lists them",
    )


def add_federated_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command over silos on their own machines."""
    title = "silos on their own machines, in place of DATA and its options"
    add = parser.add_argument_group(title).add_argument
    what = "the study; `dpkern federation up` must be running, and `dpkern silo` at every silo"
    add("--federation", metavar="STUDY.toml", help=what)
    what = "write what would be proposed, for dpkern silo --plan, and stop: nobody is asked"
    add("--plan", metavar="FILE.json", help=what)
    add("--keys", metavar="FOLDER", help="folder of the coordinator's keys")
    what = "file that is kept of the run: the same command goes on with it if it was killed"
    add("--journal", metavar="FILE", help=what)
    what = f"seconds that silos may take to join and to answer (default: {DEADLINE:g})"
    add("--deadline", type=float, metavar="S", help=what)
    add("--insecure", action="store_true", help="without encryption, as dpkern federation up")


def add_mean_range(parser: argparse.ArgumentParser) -> None:
    what = (
        "public bounds of means, for --loss poisson or gamma (default: from 1/1000, or 1/100 of "
        "gamma, of the bound of the targets up to it)"
    )
    parser.add_argument("--mean-range", type=list_of(float), metavar="LO,HI", help=what)


def with_mean_range(arguments: argparse.Namespace, loss: Any, most: float = math.inf) -> Any:
    """Return the loss with the bounds of means that were given, and the largest target."""
    kind, means = LOSSES.get(str(loss), Loss), arguments.mean_range
    if means is not None and not issubclass(kind, LogLink):
        raise UsageError("--mean-range must be left out without --loss poisson or gamma")
    if issubclass(kind, LogLink) and means is not None:
        return kind.of_means(means, most)
    if issubclass(kind, LogLink) and most < math.inf:
        return kind.of_targets(most)
    if issubclass(kind, NegativeBinomial) and most < math.inf:
        return kind(max_target=most)
    return loss


def count(text: str) -> int:
    number = parse_integer(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def auto_or(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """Parse "auto" or a number, named as the number in errors."""

    def parse(text: str) -> Any:
        return text if text == "auto" else _PARSERS[kind](text)

    parse.__name__ = kind.__name__
    return parse


def target_bound(text: str) -> float | list[float]:
    """Return the bound, or the pair of them, of an argument; the data check what it may be."""
    numbers = [parse_number(part) for part in text.split(",")]
    return numbers[0] if len(numbers) == 1 else numbers


def list_of(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    def parse(text: str) -> list[Any]:
        try:
            entries = [
                _PARSERS.get(kind, kind)(part.strip()) for part in text.split(",") if part.strip()
            ]
        except ValueError:
            entries = []
        if not entries:
            of = "" if kind is str else ": numbers alone"
            raise argparse.ArgumentTypeError(f"must be a comma-separated list, got {text!r}{of}")
        return entries

    return parse


def value(text: str) -> Any:
    """Parse the value of ``--set key=value``: int, float, bool, None, a list of these, or string.

    >>> value("3"), value("1e-3"), value("none"), value("0.1,0.2"), value("auto")
    (3, 0.001, None, [0.1, 0.2], 'auto')
    """
    if "," in text:
        return [value(part.strip()) for part in text.split(",") if part.strip()]
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for parse in _PARSERS.values():
        try:
            return parse(text)
        except ValueError:
            pass
    return text


def given_parameters(
    arguments: argparse.Namespace, known: Collection[str], who: str
) -> dict[str, Any]:
    """Return the solver parameters given by options or by --set, each of them known and once."""
    values = {name: getattr(arguments, name, None) for name in _OWN_OPTIONS}
    flags = {name: value for name, value in values.items() if value is not None}
    given = dict(flags)
    for item in arguments.set:
        name, equals, text = item.partition("=")
        if not equals or not name:
            raise UsageError(f"--set must be key=value, got {item!r}")
        if name in given:
            also = f"--{name} and " if name in flags else ""
            raise UsageError(f"{name} was given twice, by {also}--set {name}; give it once")
        given[name] = penalty_of(text) if name == "penalty" else value(text)
    for name in given:
        if name in NOT_SETTABLE:
            raise UsageError(f"--set {name} cannot be given; it has options of its own")
        if name not in known:
            close = did_you_mean(name, known) or f"; there are {', '.join(known)}"
            said = f"--{name}" if name in flags else repr(name)
            raise UsageError(f"{said} is no option of {who}{close}")
    return given


def add_release_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that release figures about one file."""
    add = parser.add_argument
    add("--epsilon", type=float, required=True, help="budget of all figures together")
    add("--delta", type=float, required=True, help="budget, with --epsilon")
    add("--ledger", metavar="FILE", help="accountant's file that is charged (dpkern ledger)")
    relation = ("replace_one", "add_remove")
    add("--neighbours", choices=relation, default=relation[0], help=f"default: {relation[0]}")
    what = "with add_remove: a public number that stands for that of the records"
    add("--public-size", type=count, metavar="N", help=what)
    what = "where records have a person: the first K of each are used, and protected together"
    add("--max-records", type=count, metavar="K", help=what)
    add("--certificate", metavar="FILE.json", help="where to save the certificate")
    add("--noise-seed", type=int, metavar="N", help="reproducible noise: not private, for tests")


def refuse_federated(arguments: argparse.Namespace) -> None:
    """Raise ValueError for options of a study without one, or without data."""
    _data.refuse_options(arguments, _OF_STUDIES, "it needs --federation")
    if arguments.data is None:
        files = "MODEL and DATA" if hasattr(arguments, "model") else "DATA"
        raise ValueError(f"give {files}, or --federation STUDY.toml")


def in_options(message: str, arguments: argparse.Namespace) -> str:
    """The message with options of this command in place of the library's arguments.

    >>> in_options("clip is 0; prox_step='auto' needs row_bound", argparse.Namespace(clip=0))
    '--clip is 0; --set prox_step=auto needs --row-bound'
    """
    solver_options = {name for solver in SOLVERS for name in settable(solver)}
    options = {name: f"--set {name}" for name in solver_options if not hasattr(arguments, name)}
    flags = {*_OF_DATA, *solver_options} - options.keys()
    options |= {name: f"--{name.replace('_', '-')}" for name in flags} | _RENAMED
    if hasattr(arguments, "plot") and not hasattr(arguments, "out"):
        options["path"] = "--plot"
    if hasattr(arguments, "rate"):
        options["rate"] = "--rate"
    if hasattr(arguments, "runs"):
        options |= {"how": "--set", "rng": "--seed"}
        options |= {name: f"--{name}" for name in ("runs", "records", "confidence")}
    if hasattr(arguments, "cross"):
        options["cross_tables"] = "--cross"
    if hasattr(arguments, "epsilons"):
        options |= {"epsilon": "--epsilons", "trust": "--solvers NAME:TRUST"}
    plain = "|".join(name for name in options if "_" not in name)
    compound = "|".join(sorted((n for n in options if "_" in n), key=len, reverse=True))
    value = r"(?:'(?P<text>[^']*)'|(?P<bare>[-+\w.]+))"

    def option(match: re.Match[str]) -> str:
        if match["phrase"]:
            return _PHRASES[match["phrase"]]
        if match["key"] is None:
            return options[match["plain"] or match["compound"]]
        flag, given = options[match["key"]], match["text"] or match["bare"]
        if flag.endswith(":TRUST"):
            return flag.replace("TRUST", given)
        return f"{flag}{'=' if flag.startswith('--set') else ' '}{given}"

    return re.sub(
        rf"(?P<phrase>{'|'.join(map(re.escape, _PHRASES))})"
        rf"|(?<![\w/.'-])(?<!--set )(?P<key>{plain}|{compound})={value}"
        rf"|{_BEFORE}(?P<plain>{plain}){_AFTER}"
        rf"|(?<![\w/.'-])(?<!--set )(?P<compound>{compound})(?![\w/]|\.\w)",
        option,
        message,
    )


def settable(solver: str) -> dict[str, Option]:
    """Return the arguments that the command line can set, by name.

    Those of "auto" are those of the solvers that it may take, which refuse each other's.
    """
    if solver == AUTO:
        found: dict[str, Option] = {}
        for name in reversed(CHOSEN):
            found |= settable(name)
        return found
    declared = SOLVERS[solver].declaration
    absent = NOT_SETTABLE + (("l1", "penalty") if declared.penalties == "l2" else ())
    found = {k: v for k, v in (SHARED | declared.own).items() if k not in absent}
    for name, values in declared.offers.items():
        found[name] = replace(found[name], kind=kind_of(values))
    return found


def penalty_of(text: str) -> Penalty:
    """Parse a penalty such as "pl:0.01" or "elastic_net:0.1+l2_squared:0.001"."""
    terms = []
    for part in text.split("+"):
        name, _, strength = part.partition(":")
        form = _PENALTIES.get(name, "")
        if not form or (strength and (form == name or not is_number(strength))):
            raise ValueError(
                f"penalty must be {' or '.join(_PENALTIES.values())} on the command line, or a sum "
                f"of these with +, got {part!r}; others need Python"
            )
        terms.append(make_penalty(name, {"strength": parse_number(strength)} if strength else {}))
    return PenaltySum(tuple(terms))


def add_project(parser: argparse.ArgumentParser) -> None:
    """Add the option that says what a run is called."""
    what = f"what the certificate says beside the guarantee: KEY is {', '.join(_TEXTS)}; repeatable"
    add = parser.add_argument
    add("--about", action="append", default=[], metavar="KEY=TEXT", help=f"{what} ({PROJECT} too)")


@dataclass(frozen=True)
class Project:
    """What the project file says; nothing without one.

        study = "readmissions 2026"
        purpose = "to predict readmission within 30 days"
        controller = "University Hospital, data protection office"
        data = "register of stays"              # a name for people, not that of the file
        bounds = "handbook of the register"     # where declared bounds are from
        ledger = "study.ledger"                 # relative to this file
        require_ledger = true                   # no fit without it

    All keys may be left out. The file in the working directory counts, or the nearest above it.
    """

    path: Path | None
    texts: Mapping[str, str]
    ledger: str | None = None
    requires_ledger: bool = False

    @classmethod
    def read(cls) -> Self:
        """Read the nearest project file, in the working directory or above it.

        Raises
        ------
        ValueError
            When it is not TOML, or a key is unknown or of another type.
        """
        here = Path.cwd()
        path = next((p for f in (here, *here.parents) if (p := f / PROJECT).is_file()), None)
        if path is None:
            return cls(None, {})
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
            refuse_unknown("the project", values, (*_TEXTS, "ledger", "require_ledger"))
            ledger, required = values.pop("ledger", None), values.pop("require_ledger", False)
            if not isinstance(required, bool):
                raise ValueError(f"require_ledger must be true or false, got {required!r}")
            if ledger is not None:
                ledger = str(path.parent / checked_texts("ledger", {"ledger": ledger})["ledger"])
            return cls(path, checked_texts("the project", values), ledger, required)
        except (TypeError, ValueError) as error:  # of tomllib and of decoding too
            raise ValueError(f"{path}: {error}") from error

    @property
    def lines(self) -> list[Line]:
        """What a command prints of it."""
        return [] if self.path is None else [("project", str(self.path))]

    def texts_for(self, given: list[str], **known: str) -> dict[str, str]:
        """Return the arguments of `with_names`: of --about, then what is known, then the file's."""
        stated: dict[str, str] = {}
        for item in given:
            name, equals, text = item.partition("=")
            if not equals:
                raise UsageError(f"--about must be KEY=TEXT, got {item!r}")
            if name in stated:
                raise UsageError(f"--about {name} was given twice; give it once")
            stated[name] = text
        try:
            refuse_unknown("--about", stated, _TEXTS)
        except ValueError as error:
            raise UsageError(str(error)) from error
        try:
            about = checked_texts("--about", stated)
        except ValueError as error:
            raise UsageError(f"--about {error}") from error
        return {**self.texts, **checked_texts("known", known), **about}

    def ledger_for(self, given: str | None, *, needed: bool = True) -> str | None:
        """Return the accountant's file that a run charges, if it has any.

        Raises
        ------
        ValueError
            When the project's is not there, or the project requires one and there is none.
        """
        if given is None and needed and self.ledger is not None:
            if not Path(self.ledger).exists():
                raise ValueError(
                    f"{self.path}: ledger must be an accountant's file, got {self.ledger}, which "
                    "does not exist; dpkern ledger creates one"
                )
            return self.ledger
        if self.requires_ledger and (given is None or not needed):
            raise ValueError(
                f"{self.path}: require_ledger is true, and this would charge none; fit takes "
                "--ledger FILE, with a budget"
            )
        return given
