"""Mutation tests by a sample: small changes of the source, made one at a time by a seeded choice.

    python -m tests.mutate --sample 100 --seed 0
    python -m tests.mutate --results FILE      kept in a file, from which a next call goes on
    python -m tests.mutate --cache FILE        which test files execute which lines, made once

A mutant swaps an operator, a comparison, min and max, or a truth value, negates or drops a
condition, or changes a number; texts, annotations, errors and `__all__` stay. Python is parsed, and
Cython and C are read as tokens; each language has a share of the sample by its lines. A mutant is
planted as `tests/faults.py` plants a fault. The default tier of the test files that execute its
statement runs until the first failure: first those that faults of the same source file name, then
the fastest. For Cython and C they are those that faults of the file, or else of its folder, name.

A mutant is killed by a failure, or where the tests do not end within a minute and took less than
half of it when they were measured; else it has timed out, or survived. The exit status is 0.
"""

import argparse
import ast
import hashlib
import json
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.faults import ROOT, Copy, read_faults

LIMIT = 60.0  # seconds for the tests of one mutant
SUFFIXES = {".py", ".pyx", ".pxi", ".c", ".h"}
COMPILED = {".pyx": "Cython", ".pxi": "Cython", ".c": "C", ".h": "C"}

SWAPS = {
    "+": ["-"], "-": ["+"], "*": ["/"], "/": ["*"], "//": ["*"], "%": ["*"], "**": ["*"],
    "<<": [">>"], ">>": ["<<"], "&": ["|"], "|": ["&"], "^": ["|"], "&&": ["||"], "||": ["&&"],
    "<": ["<=", ">="], "<=": ["<", ">"], ">": [">=", "<="], ">=": [">", "<"],
    "==": ["!="], "!=": ["=="], "+=": ["-="], "-=": ["+="], "*=": ["/="], "/=": ["*="],
    "and": ["or"], "or": ["and"], "in": ["not in"], "not in": ["in"], "is": ["is not"],
    "is not": ["is"],
}  # fmt: skip
NAMES = {"True": "False", "true": "false", "min": "max", "fmin": "fmax", "minimum": "maximum"}
NAMES |= {new: old for old, new in NAMES.items()}

OPERATOR = re.compile(
    r"\*\*|//|<<|>>|[<>=!]=|is\s+not\b|not\s+in\b|\b(?:is|in|and|or)\b|[-+*/%<>&|^]"
)
TEXT_CALLS = {"warn", "warn_user", "join", "format", "print", "ljust", "rjust", "cast", "getattr"}
SAFE_KEYWORDS = {"strict", "frozen", "slots", "stacklevel", "copy"}  # nothing in right code

STRINGS = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
SKIPPED = {
    "C": r"/\*.*?\*/|//[^\n]*|^[ \t]*\#[ \t]*(?!define)(?:\\\n|[^\n])*|" + STRINGS,
    "Cython": r'"""(?:.*?)"""|\#[^\n]*|^[ \t]*(?:raise|cimport|import|from)\b[^\n]*|' + STRINGS,
}
TOKENS = r"""
    (?P<number>(?:0[xX][0-9a-fA-F.]+(?:[pP][+-]?\d+)?|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[uUlLfF]*)
    |(?P<word>[A-Za-z_]\w*)
    |(?P<operator>(?<=\s)(?:\*\*|//|<<|>>|&&|\|\||[-+*/]=|[<>=!]=|[-+*/%<>&|^])(?=\s))
"""


@dataclass(frozen=True)
class Mutant:
    """A change of the source."""

    path: str  #: of the file, below the root
    start: int  #: first of the bytes that are replaced
    end: int  #: after the last of them
    old: str
    new: str
    lines: tuple[int, int]  #: first line of the statement, and line of the change
    inside: bool  #: whether it is in a function of Python

    @property
    def id(self) -> str:
        """Place and change."""
        return f"{self.path}:{self.lines[1]}  {self.old} -> {self.new}  @{self.start}"


def change_number(text: str) -> str:
    """Another number in place of a literal."""
    if text.isdigit():
        return str(int(text) + 1)
    if re.fullmatch(r"[0.]+", text):
        return "1.0"
    return f"({text} + 1)" if text[:2].lower() == "0x" and "p" not in text else f"(2 * {text})"


class PythonMutants:
    """The mutants of a Python file, from its path below the root and its bytes."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path, self.text = path, data.decode("latin-1")  # a character a byte, as in ast
        self.starts = [0]
        for line in data.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.mutants: list[Mutant] = []
        self.walk(ast.parse(data), 1, False)

    def begin(self, node: Any) -> int:
        """Offset of a node's first byte."""
        return self.starts[node.lineno - 1] + int(node.col_offset)

    def end(self, node: Any) -> int:
        """Offset after a node's last byte."""
        return self.starts[node.end_lineno - 1] + int(node.end_col_offset)

    def add(self, start: int, end: int, *news: str) -> None:
        """Add mutants of a place."""
        old, lines = self.text[start:end], (self.statement, self.text.count("\n", 0, start) + 1)
        self.mutants += [Mutant(self.path, start, end, old, n, lines, self.inside) for n in news]

    def walk(self, node: ast.AST, statement: int, inside: bool) -> None:
        """Add the mutants below a node."""
        if is_skipped(node):
            return
        self.statement, self.inside = statement, inside
        for left, right in pairwise(operands(node)):
            start, end = self.end(left), self.begin(right)
            match = OPERATOR.search(self.text, start, end)
            if match and "#" not in self.text[start:end]:
                self.add(match.start(), match.end(), *SWAPS.get(" ".join(match[0].split()), ()))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            start = self.begin(node)
            self.add(start, start + (3 if isinstance(node.op, ast.Not) else 1), "")
        elif isinstance(node, ast.If | ast.While | ast.IfExp | ast.comprehension):
            for test in node.ifs if isinstance(node, ast.comprehension) else [node.test]:
                start, end = self.begin(test), self.end(test)
                self.add(start, end, f"(not ({self.text[start:end]}))", "True")
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            start, end = self.begin(node), self.end(node)
            self.add(start, end, change_number(self.text[start:end].replace("_", "")))
        elif isinstance(node, ast.Constant) and type(node.value) is bool:
            self.add(self.begin(node), self.end(node), str(not node.value))
        elif isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in NAMES:
                self.add(self.end(node) - len(name), self.end(node), NAMES[name])
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "type_params"):
                continue
            within = inside or (field == "body" and isinstance(
                node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))  # fmt: skip
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    first = child.lineno if isinstance(child, ast.stmt) else statement
                    self.walk(child, first, within)


def operands(node: ast.AST) -> list[ast.expr]:
    """The expressions between which the operators of a node stand."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.AugAssign):
        return [node.target, node.value]
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    return node.values if isinstance(node, ast.BoolOp) else []


def is_skipped(node: ast.AST) -> bool:
    """Whether a node is a text, an error, or what changes nothing in right code."""
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        return name in TEXT_CALLS
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.Add):
        return any(ast.unparse(side).startswith(("'", '"', "f'", 'f"')) for side in operands(node))
    if isinstance(node, ast.keyword):
        return node.arg in SAFE_KEYWORDS
    if isinstance(node, ast.Assign | ast.If):
        first = node.test if isinstance(node, ast.If) else node.targets[0]
        return ast.unparse(first) in ("__all__", "TYPE_CHECKING")
    return isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert)


def read_tokens(path: str, data: bytes, language: str) -> Iterator[Mutant]:
    """The mutants of a Cython or C file."""
    text = data.decode("latin-1")
    pattern = re.compile(f"(?P<skipped>{SKIPPED[language]})|{TOKENS}", re.S | re.M | re.X)
    for match in pattern.finditer(text):
        start, end, token = match.start(), match.end(), match[0]
        news: list[str] = []
        if match.lastgroup == "number":
            news = [change_number(token)]
        elif match.lastgroup == "operator" or (language == "Cython" and token in ("and", "or")):
            news = SWAPS.get(token, [])
        elif token in NAMES:
            news = [NAMES[token]]
        elif token in ("if", "elif", "while"):
            start, end = end, find_condition(text, end, language)
            inner = text[start:end].strip()
            news = [f" (!{inner})", " (1)"] if language == "C" else [f" (not ({inner}))", " True"]
            news = news if inner else []
        lines = (text.count("\n", 0, start) + 1,) * 2
        for new in news:
            yield Mutant(path, start, end, text[start:end], new, lines, True)


def find_condition(text: str, start: int, language: str) -> int:
    """Where the condition after an `if` ends, `start` where there is none in plain sight."""
    if language == "Cython":
        match = re.compile(r" ([^\n#]+)(?=:[ ]*\n)").match(text, start)
        return match.end() if match else start
    depth = 0
    for place in re.compile(r"[()]").finditer(text, start):
        depth += 1 if place[0] == "(" else -1
        if depth <= 0:
            return place.end()
    return start


def choose(sample: int, seed: int) -> list[Mutant]:
    """A sample of mutants, each language with a share by its lines."""
    lines, mutants = Counter[str](), dict[str, list[Mutant]]()
    for file in sorted((ROOT / "src").rglob("*")):
        if file.suffix not in SUFFIXES:
            continue
        path, data = file.relative_to(ROOT).as_posix(), file.read_bytes()
        language = COMPILED.get(file.suffix, "Python")
        if path.startswith("src/csrc/gpu/") or (language == "Python" and "csrc" in path):
            continue  # for a card, and what writes sources
        python = language == "Python"
        made = PythonMutants(path, data).mutants if python else read_tokens(path, data, language)
        mutants.setdefault(language, []).extend(made)
        lines[language] += data.count(b"\n")
    generator, chosen = random.Random(seed), []
    for language in sorted(mutants):
        share = max(1, round(sample * lines[language] / lines.total()))
        chosen += generator.sample(mutants[language], min(share, len(mutants[language])))

    def sort_key(mutant: Mutant) -> tuple[bool, bool, str]:
        path = mutant.path  # privacy comes first, and last what is compiled, a file at a time
        return not path.endswith(".py"), "/privacy/" not in path, path

    return sorted(chosen, key=sort_key)


def measure(copy: Copy, file: Path) -> dict[str, Any]:
    """The seconds and the executed lines of every test file, by coverage, kept in `file`."""
    import coverage

    sources = sorted((copy.root / "src" / "dpkern").rglob("*.py"))
    digest = hashlib.sha256(b"".join(map(Path.read_bytes, sources))).hexdigest()
    kept = json.loads(file.read_text()) if file.exists() else {}
    kept = kept if kept.get("digest") == digest else {"digest": digest, "files": {}}
    for test in sorted((copy.root / "tests").glob("test_*.py")):
        if test.stem in kept["files"]:
            continue
        data = file.with_suffix(".data")
        tool = f"coverage run --data-file={data} --source=src/dpkern -m pytest"
        begin = time.monotonic()
        status, failed = copy.run([f"tests/{test.name}"], tool=tool)
        seconds, executed = round(time.monotonic() - begin, 1), {}
        if status == 0:
            result = coverage.CoverageData(str(data))
            result.read()
            for path in result.measured_files():
                numbers = sorted(result.lines(path) or ())
                executed[Path(path).relative_to(copy.root).as_posix()] = numbers
        data.unlink(missing_ok=True)
        kept["files"][test.stem] = {"seconds": seconds, "lines": executed}
        file.write_text(json.dumps(kept, separators=(",", ":")))
        print(f"{test.stem}: {seconds:.0f} s {' '.join(failed)}", flush=True)
    return dict(kept["files"])


def read_names() -> dict[str, set[str]]:
    """The test files that faults name, by the source file that a fault is in, and its folder."""
    named: dict[str, set[str]] = {}
    for fault in read_faults():
        path = fault.path(ROOT)
        for place in (path, path.parent):
            named.setdefault(place.relative_to(ROOT).as_posix(), set()).update(fault.tests)
    return named


def choose_tests(mutant: Mutant, files: dict[str, Any], named: dict[str, set[str]]) -> list[str]:
    """The test files of a mutant, in the order in which they run."""
    here = named.get(mutant.path, set())
    if not mutant.path.endswith(".py"):
        stems = here or named.get(mutant.path.rpartition("/")[0], set())
    else:
        lines = {stem: set(f["lines"].get(mutant.path, ())) for stem, f in files.items()}
        statement = set(range(min(mutant.lines), max(mutant.lines) + 1))
        stems = {stem for stem, executed in lines.items() if executed & statement}
        if stems and not mutant.inside:  # every import executes it: who executes more of the file
            common = set.intersection(*(lines[stem] for stem in stems))
            stems = {stem for stem in stems if lines[stem] - common} or stems
    stems = {stem for stem in stems if files[stem]["lines"]}  # the others fail without a mutant
    return sorted(stems, key=lambda stem: (stem not in here, files[stem]["seconds"]))


def try_mutant(copy: Copy, mutant: Mutant, tests: list[str], seconds: float) -> str:
    """What came of a mutant, by tests that take so long without it."""
    if not tests:
        return "survived: no test file executes it"
    path = copy.root / mutant.path
    text = path.read_bytes().decode("latin-1")
    changed = text[: mutant.start] + mutant.new + text[mutant.end :]
    names = [f"tests/{stem}.py" for stem in tests]
    try:
        with copy.planted(path, changed.encode("latin-1").decode()):
            status, failed = copy.run(["-x", *names], limit=LIMIT)
    except RuntimeError:
        return "killed: does not build"
    if status is None:
        return "killed: no end" if seconds < LIMIT / 2 else "timed out"
    return f"killed: {' '.join(failed) or f'pytest ended with {status}'}" if status else "survived"


def main() -> None:
    """Read the command line, try the mutants, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, default=100, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0, help="of their choice")
    parser.add_argument("--results", type=Path, metavar="FILE", help="what came of each, as JSON")
    parser.add_argument("--cache", type=Path, metavar="FILE", help="lines of each test file",
                        default=Path(tempfile.gettempdir()) / "dpkern-executed.json")  # fmt: skip
    arguments = parser.parse_args()
    file = arguments.results
    results = json.loads(file.read_text()) if file is not None and file.exists() else {}
    chosen = choose(arguments.sample, arguments.seed)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(Path(folder))
        files, named = measure(copy, arguments.cache), read_names()
        for mutant in chosen:
            if mutant.id in results:
                continue
            begin = time.monotonic()
            stems = choose_tests(mutant, files, named)
            said = try_mutant(copy, mutant, stems, sum(files[s]["seconds"] for s in stems))
            print(f"{time.monotonic() - begin:5.1f} s  {mutant.id}  {said}", flush=True)
            results[mutant.id] = said
            if file is not None:
                file.write_text(json.dumps(results, indent=1))
    outcomes = {mutant.id: results[mutant.id] for mutant in chosen}
    for id, said in outcomes.items():
        if not said.startswith("killed"):
            print(f"{said}: {id}")
    for outcome in ("killed", "survived", "timed out"):
        print(f"{outcome}: {sum(said.startswith(outcome) for said in outcomes.values())}")


if __name__ == "__main__":
    main()
