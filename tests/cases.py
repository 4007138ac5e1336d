"""Many cases in one test, and the keys of noise in tests."""

import hashlib
import inspect
import secrets
from contextlib import contextmanager

import pytest


class KeysOfTests:
    """The module `secrets`, with keys that follow from the names of tests.

    Noise without a seed would fail any test of an estimate one time in some thousands; there are
    thousands of tests. Other processes, and the names of files, keep the operating system's keys.
    """

    def __init__(self):
        self.restart("")

    def restart(self, name):
        self.name, self.count = name, 0

    def token_bytes(self, size):
        self.count += 1
        return hashlib.shake_256(f"{self.name} {self.count}".encode()).digest(size)

    def randbits(self, count):
        return int.from_bytes(self.token_bytes(-(-count // 8))) >> -count % 8

    def __getattr__(self, name):
        return getattr(secrets, name)


KEYS = KeysOfTests()


class Chosen:
    """Which cases of a test run: those whose names hold the text of `--cases`."""

    text = ""


def name_case(names, values, number, ids):
    """What a case is called in an error: as pytest calls it."""
    if ids is not None and not callable(ids):
        return str(ids[number])
    shown = [ids and ids(value) for value in values]
    for k, value in enumerate(values):
        if shown[k] is None and (value is None or isinstance(value, (str, int, float))):
            shown[k] = str(value)
        elif shown[k] is None:
            name = getattr(value, "__name__", None) or getattr(value, "name", None)
            shown[k] = name if isinstance(name, str) else f"{names[k]}{number}"
    return "-".join(map(str, shown))


def read_cases(names, cases, ids):
    """(name, arguments) of every case, of what `pytest.mark.parametrize` takes."""
    alone = isinstance(names, str) and "," not in names  # else cases are sequences
    names = [n.strip() for n in names.split(",")] if isinstance(names, str) else names
    for number, case in enumerate(cases):
        param = case if isinstance(case, type(pytest.param())) else None
        assert param is None or not param.marks, "a marked case is an item of its own"
        values = param.values if param else (case,) if alone else case
        name = (param and param.id) or name_case(names, values, number, ids)
        yield name, dict(zip(names, values, strict=True))


@contextmanager
def own_fixtures(fixtures, number):
    """The fixtures of a test, with those that keep what a case did as new for the next one."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        fixtures = dict(fixtures)
        if "monkeypatch" in fixtures:
            fixtures["monkeypatch"] = monkeypatch
        if "tmp_path" in fixtures:
            fixtures["tmp_path"] = fixtures["tmp_path"] / str(number)
            fixtures["tmp_path"].mkdir()
        if "capsys" in fixtures:
            fixtures["capsys"].readouterr()
        for seen in (fixtures.get("spied", []), *fixtures.get("replay", ())):
            seen.clear()
        yield fixtures


def for_each(names, cases, ids=None):
    """Run a test on every case as one item: `pytest.mark.parametrize` for cases of milliseconds.

    All cases run, each with keys, `monkeypatch`, `tmp_path` and `capsys` of its own, and `spied`
    and `replay` empty. The first error is raised, and has the names of all cases that failed. The
    test is skipped where every case skips: one that does says that the property is not its own.
    """
    ids = ids if ids is None or callable(ids) else list(ids)
    cases = list(read_cases(names, cases, ids))
    names = list(cases[0][1])

    def decorate(test):
        def run(**fixtures):
            __tracebackhide__ = True
            failed, skipped, item = [], [], KEYS.name
            chosen = [(k, *case) for k, case in enumerate(cases) if Chosen.text in case[0]]
            if not chosen:
                pytest.skip(f"no case has {Chosen.text!r} in its name")
            for number, name, case in chosen:
                KEYS.restart(f"{item}[{name}]")
                try:
                    with own_fixtures(fixtures, number) as own:
                        test(**own, **case)
                except pytest.skip.Exception as reason:
                    skipped.append(reason)
                except (Exception, pytest.fail.Exception) as error:
                    failed.append((name, error))
            if failed:
                error = failed[0][1]
                error.add_note(f"failed for {', '.join(name for name, _ in failed)}")
                raise error
            if len(skipped) == len(chosen):
                raise skipped[0]

        given = inspect.signature(test).parameters
        assert set(names) <= set(given), f"{test.__name__} does not take all of {names}"
        return imitate(run, test, [name for name in given if name not in names])

    return decorate


def imitate(run, test, arguments):
    """Give a function the name and the marks of a test, and these arguments."""
    for field in ("__name__", "__qualname__", "__doc__", "__module__"):
        setattr(run, field, getattr(test, field))
    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in arguments]
    run.__signature__ = inspect.Signature(parameters)
    run.pytestmark = list(getattr(test, "pytestmark", []))
    return run


def choose_cases(group, names, cases):
    """As `for_each`, on the cases of the value that an argument or fixture of the test has.

    `cases` has those of each value; the test takes the value where it has such an argument.
    """

    def decorate(test):
        tests = {value: for_each(names, own)(test) for value, own in cases.items()}
        given = list(inspect.signature(next(iter(tests.values()))).parameters)

        def run(**fixtures):
            value = fixtures[group] if group in given else fixtures.pop(group)
            tests[value](**fixtures)

        return imitate(run, test, dict.fromkeys([group, *given]))

    return decorate


def for_each_in(group, names, cases):
    """As `for_each`, with an item for every value of an argument; `cases` has those of each."""
    return lambda test: pytest.mark.parametrize(group, list(cases))(
        choose_cases(group, names, cases)(test)
    )


def mark_slow(cases, slow, mark):
    """Values of a parameter, of which the slow ones are items of another tier."""
    assert set(slow) <= set(cases)
    return [pytest.param(case, marks=mark) if case in slow else case for case in cases]


def few_seeds(few, many):
    """The argument `seeds`: a few of them, and many as an item of the tier "statistical"."""
    others = pytest.param(range(many), marks=pytest.mark.statistical)
    return pytest.mark.parametrize("seeds", [range(few), others], ids=["few", "many"])
