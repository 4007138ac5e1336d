"""Mutation tests: faults planted in the source one at a time, and the tests that must fail.

    python -m tests.faults                     every fault, one after the other
    python -m tests.faults --only ID [ID ...]  some of them
    python -m tests.faults --of dpkern/privacy  those of a file or a folder of src
    python -m tests.faults --check             only whether every snippet is found once
    python -m tests.faults --results FILE      kept in a file, from which a next call goes on

The faults are in `planted`, a file for every package, under their source file and their id: the
property that the fault breaks, a snippet of the file and what to put in its place, the test files
that must fail, and the tier of tests (`tests/tiers.py`) that catches it where the default one does
not. A snippet is looked for with any white space between its words, and must occur exactly once.
Each fault is planted in a temporary copy of the working tree, the named tests run there until the
first failure, and the source is put back. At the end the tests that failed run once more without
any fault: what fails then has seen no fault. The exit status is 1 when a fault is not caught or not
found.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.tiers import TIERS

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 900.0  # seconds for the tests of one fault
DEFAULT = "default"  # the tier of tests without a mark

# An editable installation of dpkern comes before PYTHONPATH: it is taken out of the import system,
# in the tests' own subprocesses too.
SITECUSTOMIZE = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__]
"""


@dataclass(frozen=True)
class Fault:
    """A change of the source that breaks a property.

    Attributes
    ----------
    id, source, property : str
        Its name, the file of src that it is in, and what does not hold any more.
    old, new : str
        The snippet and what takes its place; lines after the first are indented like the snippet.
    tests : list of str
        Stems of the test files that must catch it.
    tier : str
        The tier of these files' tests that must.
    """

    id: str
    source: str
    property: str
    old: str
    new: str
    tests: list[str]
    tier: str = DEFAULT

    def path(self, root: Path) -> Path:
        """The source file below a root of the working tree."""
        return root / "src" / self.source

    def found(self, text: str) -> list[re.Match[str]]:
        """Where the snippet occurs."""
        return list(re.finditer(r"\s+".join(map(re.escape, self.old.split())), text))

    def planted(self, text: str, match: re.Match[str]) -> str:
        """The file's text with the fault in it."""
        line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        indent = line[: len(line) - len(line.lstrip())]
        new = self.new.replace("\n", "\n" + indent)
        return text[: match.start()] + new + text[match.end() :]


def read_faults() -> list[Fault]:
    """All faults, what is compiled last, a file at a time."""
    found = []
    for path in Path(__file__).with_name("planted").glob("*.toml"):
        for source, faults in tomllib.loads(path.read_text(encoding="utf-8")).items():
            found += [Fault(id, source, **entry) for id, entry in faults.items()]
    return sorted(found, key=lambda fault: (not fault.source.endswith(".py"), fault.source))


def test_files(fault: Fault, root: Path) -> list[str]:
    """Paths of the tests that must catch the fault, those that are there."""
    found = [path for stem in fault.tests for path in (root / "tests").rglob(f"{stem}.py")]
    return [str(path.relative_to(root)) for path in found]


def complaints(fault: Fault, root: Path) -> list[str]:
    """What has to be repaired before the fault can be planted."""
    path, wrong = fault.path(root), []
    found = fault.found(path.read_text(encoding="utf-8")) if path.exists() else []
    if len(found) != 1:
        wrong.append(f"snippet found {len(found)} times in {fault.source}: {fault.old!r}")
    if fault.new.split() == fault.old.split():
        wrong.append("the new text is the old one")
    if len(test_files(fault, root)) != len(fault.tests) or not fault.tests:
        wrong.append(f"not one test file for each of {fault.tests}")
    if fault.tier not in (DEFAULT, *TIERS):
        wrong.append(f"tier must be one of {', '.join((DEFAULT, *TIERS))}, got {fault.tier}")
    return wrong


class Copy:
    """A copy of the working tree, built for itself.

    Parameters
    ----------
    folder : Path
        An empty folder.
    change : callable, optional
        Changes the copy, whose root it gets, before the first build.
    """

    def __init__(self, folder: Path, change: Callable[[Path], None] | None = None) -> None:
        self.root, self._folder = folder / "tree", folder
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout
        for name in filter(None, os.fsdecode(names).split("\0")):
            if (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(SITECUSTOMIZE)
        before = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
        self.environment = os.environ | {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([str(folder / "site"), str(self.root / "src"), *before]),
            # The time stamp of a compiled file is in seconds: too coarse for what changes here.
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_WAIT_POLICY": "passive",
            "CI": "1",  # hypothesis tries the same examples every time
        }
        if change is not None:
            change(self.root)
        self._meson("setup", "-Doptimization=1", str(folder / "build"))  # faults need no speed
        self.build()
        shutil.copytree(folder / "build", folder / "clean")

    def _meson(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "mesonbuild.mesonmain", *arguments]
        environment, root = self.environment, self.root
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the copy does not build:\n{done.stdout[-4000:]}{done.stderr}")

    def build(self) -> None:
        """Compile what has changed, and put the extension where Python finds it."""
        self._meson("compile", "-C", str(self._folder / "build"))
        self._put_extension()

    def unbuild(self) -> None:
        """Go back to the first build, time stamps and all, so that nothing is compiled twice."""
        shutil.rmtree(self._folder / "build")
        shutil.copytree(self._folder / "clean", self._folder / "build")
        self._put_extension()

    def _put_extension(self) -> None:
        (extension,) = (self._folder / "build").glob("_core.*.so")
        shutil.copy2(extension, self.root / "src" / "dpkern" / extension.name)

    @contextmanager
    def planted(self, path: Path, text: str) -> Iterator[None]:
        """A source file of the copy with another text, compiled where it has to be."""
        before, stamp, compiled = path.read_bytes(), path.stat().st_mtime_ns, path.suffix != ".py"
        path.write_text(text, encoding="utf-8")
        try:
            if compiled:
                self.build()
            yield
        finally:
            path.write_bytes(before)
            os.utime(path, ns=(stamp, stamp))
            if compiled:
                self.unbuild()

    def run(
        self, tests: list[str], marks: str | None = None, limit: float = LIMIT, tool: str = "pytest"
    ) -> tuple[int | None, list[str]]:
        """Exit status of pytest, None after `limit` seconds, and the tests that failed.

        `marks` is the expression that selects tests; None takes the default tier. `tool` is the
        module, with arguments of its own, that runs pytest.
        """
        cache = self._folder / "cache"
        shutil.rmtree(cache, ignore_errors=True)
        options = ["-q", "-o", f"cache_dir={cache}"]
        command = [sys.executable, "-m", *tool.split(), *options, *tests]
        command += [] if marks is None else ["-m", marks]
        with (self._folder / "output").open("wb") as output:
            process = subprocess.Popen(
                command, cwd=self.root, env=self.environment, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                status = process.wait(limit)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                return None, []
        record = cache / "v" / "cache" / "lastfailed"
        return status, list(json.loads(record.read_text())) if record.exists() else []

    @property
    def output(self) -> str:
        """The end of what the last run has printed."""
        return (self._folder / "output").read_text(encoding="utf-8", errors="replace")[-2000:]


def try_fault(copy: Copy, fault: Fault) -> tuple[str, list[str]]:
    """What came of a fault, and the tests that failed."""
    path = fault.path(copy.root)
    text = path.read_text(encoding="utf-8")
    (match,) = fault.found(text)
    marks = None if fault.tier == DEFAULT else fault.tier
    try:
        with copy.planted(path, fault.planted(text, match)):
            status, failed = copy.run(["-x", *test_files(fault, copy.root)], marks)
    except RuntimeError as error:
        return f"NOT CAUGHT: {error}", []
    if status == 1 and failed:
        return "caught", failed
    if status is None:
        return f"NOT CAUGHT: no end after {LIMIT:.0f} s", []
    return "NOT CAUGHT" if status == 0 else f"NOT CAUGHT: pytest failed:\n{copy.output}", []


def try_faults(faults: list[Fault], results: dict[str, list[str]], file: Path | None) -> list[str]:
    """Plant the faults one at a time; the ids of those that are not caught.

    `results` has the tests that caught a fault in an earlier call, by id; it is added to and kept
    in the file, if there is one.
    """
    missed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy = Copy(Path(folder))
        for fault in faults:
            if fault.id in results:
                continue
            begin = time.monotonic()
            said, failed = try_fault(copy, fault)
            seconds = time.monotonic() - begin
            print(f"{fault.id:<32}  {seconds:6.1f} s  {said}  {' '.join(failed)}", flush=True)
            if not failed:
                missed.append(fault.id)
                continue
            results[fault.id] = failed
            if file is not None:
                file.write_text(json.dumps(results, indent=1))
        tried = {fault.id for fault in faults}
        seen_by: dict[str, list[str]] = {}
        for id, tests in results.items():
            for test in tests if id in tried else []:
                seen_by.setdefault(test, []).append(id)
        status, failed = copy.run(sorted(seen_by), "") if seen_by else (0, [])
        if status not in (0, 1):
            raise RuntimeError(f"pytest failed without a fault:\n{copy.output}")
    for test in failed:
        print(f"fails without a fault too: {test}; NOT CAUGHT: {', '.join(seen_by[test])}")
        missed += seen_by[test]
    return missed


def main() -> int:
    """Read the command line, and do what it says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="ID", help="these faults")
    parser.add_argument("--of", metavar="PATH", help="the faults of this file or folder of src")
    parser.add_argument("--check", action="store_true", help="only look for the snippets")
    parser.add_argument("--results", type=Path, metavar="FILE", help="what was caught, as JSON")
    arguments = parser.parse_args()

    faults = read_faults()
    if len({fault.id for fault in faults}) < len(faults):
        parser.error("two faults have one id")
    if arguments.only is not None:
        faults = [fault for fault in faults if fault.id in arguments.only]
    if arguments.of is not None:
        faults = [fault for fault in faults if Path(fault.source).is_relative_to(arguments.of)]
    if not faults:
        parser.error("there is no such fault")

    begin = time.monotonic()
    lost = {fault.id: complaints(fault, ROOT) for fault in faults}
    lost = {name: wrong for name, wrong in lost.items() if wrong}
    for name, wrong in lost.items():
        print(f"{name:<32}  {'; '.join(wrong)}")
    there = [fault for fault in faults if fault.id not in lost]
    print(f"{len(there)} of {len(faults)} faults can be planted")
    if arguments.check or not there:
        return int(bool(lost))
    file, results = arguments.results, {}
    if file is not None and file.exists():
        results = json.loads(file.read_text())
    missed = try_faults(there, results, file)
    print(f"{len(there) - len(missed)} of {len(faults)} faults caught in "
          f"{time.monotonic() - begin:.0f} s")  # fmt: skip
    if missed:
        print(f"not caught: {', '.join(missed)}")
    return int(bool(lost or missed))


if __name__ == "__main__":
    sys.exit(main())
