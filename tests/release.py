"""Everything that a release must pass, on the commit that is checked out.

    python -m tests.release [--only STEP ...]

`.ci/run`, all tiers of tests, planted faults, a sample of mutants, the benchmarks of
bench/report.py and the audits of bench/audits.py, hours in all, in a clone under
build/release/COMMIT. What has passed there is not run again: after a failure or an interruption
the same command goes on. `release.json` and `release.md` in that folder say what came of each
step. Once the checks and all tiers have passed, `.ci/checked` names the commit, from which on
`tests.tiers` counts changes; commit that file. Tests on public data need `DPKERN_DATA`.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.machine import name as name_machine
from tests.tiers import CHECKED, ROOT, TIERS

# Each step is a command of the clone, run with the tools of the release's own environment.
STEPS = {
    "environment": "python3 -m venv ../venv && pip install --quiet '.[dev]' meson ninja Cython",
    "checks": "bash .ci/run --list",
    "default tier": "python -m pytest -q -n 2 --dist worksteal",
    **{f"tier {tier}": f"python -m tests.tiers {tier}" for tier in TIERS},
    "planted faults": "python -m tests.faults --results ../faults.json",
    "sampled mutants": "python -m tests.mutate --cache ../executed.json --results ../mutants.json",
    "benchmarks": "python -m bench.report --json ../report.json",
    "audits": "python -m bench.audits --json ../audits.json",
}


TESTS = tuple(STEPS)[: list(STEPS).index("planted faults")]


class Release:
    """The state of a release's steps, kept in a folder.

    Parameters
    ----------
    folder : Path
        Of this commit alone.
    commit : str
        What is checked.
    steps : dict of str to str
        Names and shell commands, in order.
    """

    def __init__(self, folder: Path, commit: str, steps: dict[str, str]) -> None:
        self.folder, self.commit, self.steps = folder, commit, steps
        self._file = folder / "release.json"
        self.results: dict[str, dict[str, Any]] = {}
        if self._file.exists():
            self.results = json.loads(self._file.read_text())["steps"]

    @property
    def failed(self) -> list[str]:
        """Steps that have not passed, or not run."""
        return [step for step in self.steps if not self.has_passed(step)]

    def has_passed(self, step: str) -> bool:
        """Whether a step has run and ended with exit status 0."""
        return self.results.get(step, {}).get("status") == 0

    def run(self, step: str) -> None:
        """Run a step in the clone, its output in a file of its own."""
        log = self.folder / f"{step.replace(' ', '_')}.log"
        venv = self.folder / "venv"
        environment = os.environ | {
            "PATH": os.pathsep.join([str(venv / "bin"), os.environ["PATH"]]),
            "VIRTUAL_ENV": str(venv),
        }
        begin = time.monotonic()
        with log.open("wb") as output:
            status = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", self.steps[step]],
                cwd=self.folder / "clone", env=environment, stdout=output, stderr=subprocess.STDOUT,
            ).returncode  # fmt: skip
        self.results[step] = {
            "status": status,
            "seconds": round(time.monotonic() - begin, 1),
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": name_machine(),
            "log": log.name,
        }
        self.write()

    def write(self) -> None:
        """Write release.json and release.md."""
        about = {
            "commit": self.commit,
            "passed": not self.failed,
            "python": platform.python_version(),
            "steps": self.results,
        }
        self._file.write_text(json.dumps(about, indent=1) + "\n")
        (self.folder / "release.md").write_text(self.page())

    def page(self) -> str:
        """The results as one page of Markdown: a table of the steps, and what long ones printed."""
        lines = [
            f"# Release check of {self.commit[:12]}",
            "",
            f"Not passed: {', '.join(self.failed)}." if self.failed else "All steps passed.",
            "",
            "| step | result | minutes | ended | machine |",
            "|---|---|---|---|---|",
        ]
        for step in self.steps:
            found = self.results.get(step)
            if found is None:
                lines.append(f"| {step} | not run | | | |")
                continue
            result = "passed" if found["status"] == 0 else f"failed ({found['status']})"
            cells = (step, result, f"{found['seconds'] / 60:.1f}", found["ended"], found["machine"])
            lines.append(f"| {' | '.join(cells)} |")
        for step, found in self.results.items():
            text = (self.folder / found["log"]).read_text(errors="replace").rstrip()
            # Figures as a whole, of everything else the end.
            whole = step in ("benchmarks", "audits")
            shown = text.splitlines() if whole else text.splitlines()[-12:]
            lines += ["", f"## {step}", "", "```text", *shown, "```"]
        return "\n".join(lines) + "\n"


def main() -> int:
    """Read the command line, and run the steps that have not passed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.release",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", nargs="+", metavar="STEP", choices=list(STEPS), help="these steps"
    )
    options = parser.parse_args()

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout

    if git("status", "--porcelain"):
        parser.error("the working tree must have no changes: commit or stash them")
    commit = git("rev-parse", "HEAD").strip()
    folder = ROOT / "build" / "release" / commit
    if not (folder / "clone").exists():
        folder.mkdir(parents=True, exist_ok=True)
        git("clone", "--quiet", str(ROOT), str(folder / "clone"))
    release = Release(folder, commit, STEPS)
    for step in options.only or STEPS:
        if not release.has_passed(step):
            print(f"{datetime.now():%H:%M}  {step}", flush=True)
            release.run(step)
            found = release.results[step]
            if found["status"]:
                print(f"failed after {found['seconds']:.0f} s: {folder / found['log']}", flush=True)
                if step == "environment":
                    break  # which all others need
    print(f"written to {folder / 'release.json'} and release.md")
    if all(map(release.has_passed, TESTS)):
        CHECKED.write_text(commit + "\n")
        print(f"all tests passed: commit {CHECKED.relative_to(ROOT)}")
    if release.failed:
        print(f"not passed: {', '.join(release.failed)}")
    return int(bool(release.failed))


if __name__ == "__main__":
    sys.exit(main())
