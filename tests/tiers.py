"""Tiers of tests beside the default one, and which of them a change touches.

    python -m tests.tiers                 run the tiers that changes since .ci/checked touch
    python -m tests.tiers --list          only name them
    python -m tests.tiers --all           run every tier
    python -m tests.tiers proof isa       run these

A tier is a mark of tests (`markers` in pyproject.toml); tests without a mark are the default tier,
which plain `pytest` runs. `.ci/checked` holds the commit at which all tiers have last passed;
where it is missing or unknown to git, every tier is touched. A test file that changed runs as a
whole, whatever its marks.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHECKED = ROOT / ".ci" / "checked"
TIERS = ("isa", "statistical", "processes", "docs", "proof")
ALL = set(TIERS)
NOTHING_SELECTED = 5  # exit status of pytest

# The first pattern that a path matches says which tiers a change of the file touches; a path that
# matches none touches all. Released bits, references, declarations and the sanitizers are checked
# at every change.
TOUCHED: dict[str, set[str]] = {
    "docs/*": {"docs"},
    "examples/*": {"docs"},
    "bench/*": {"docs"},
    "README.md": {"docs"},
    "CHANGELOG.md": set(),
    "CITATION.cff": set(),
    "CONTRIBUTING.md": {"docs"},
    "LICENSE": set(),
    "SECURITY.md": set(),
    ".ci/*": set(),  # the run itself is the test
    ".github/*": set(),
    ".clang-format": set(),
    ".gitignore": set(),
    ".pre-commit-config.yaml": set(),
    "src/csrc/*": {"isa", "statistical", "proof"},
    "src/dpkern/_core*": {"isa", "statistical", "proof"},
    "src/dpkern/kernels/*": {"isa", "statistical", "proof"},
    "src/dpkern/reference/*": {"isa", "statistical", "proof"},
    "src/dpkern/models/*": {"isa", "statistical", "proof", "docs"},
    "src/dpkern/privacy/*": {"statistical", "proof", "docs"},
    "src/dpkern/verification/*": {"statistical", "proof", "docs"},
    "src/dpkern/solvers/base/*": {"statistical", "processes", "docs", "proof"},
    "src/dpkern/solvers/releases/*": {"statistical", "processes", "docs", "proof"},
    "src/dpkern/solvers/*": {"statistical"},
    "src/dpkern/papers/*": {"statistical", "docs", "proof"},
    "src/dpkern/auditing/*": {"statistical", "docs"},
    "src/dpkern/selection.py": {"statistical", "docs", "proof"},
    "src/dpkern/candidates.py": {"statistical", "docs"},
    "src/dpkern/planning.py": {"docs"},
    "src/dpkern/plotting.py": {"docs"},
    "src/dpkern/ranges.py": {"statistical", "docs"},
    "src/dpkern/evaluation/*": {"statistical", "docs"},
    "src/dpkern/estimators/*": {"docs"},
    "src/dpkern/data/*": {"docs", "processes"},
    "src/dpkern/io/*": {"docs", "processes"},
    "src/dpkern/cluster.py": {"docs", "processes"},
    "src/dpkern/datasets.py": {"docs"},
    "src/dpkern/cli/*": {"docs", "processes"},
    "src/dpkern/federated/*": {"docs", "processes"},
    "tests/test_*.py": set(),  # run as a whole
    "tests/faults.py": set(),
    "tests/planted/*": set(),
    "tests/mutate.py": set(),
    "tests/released*": set(),  # the default tier compares released bits
    "tests/driver*": set(),  # so does each run of the sanitizers
    "tests/gpu_card.*": {"proof"},  # and tests/test_gpu.py in the default tier
    "tests/recipes.toml": {"docs"},
    "tests/tiers.py": set(),
    "tests/release.py": {"processes"},
}


def touched_by(path: str) -> set[str]:
    """Tiers that a change of the file touches."""
    return next((tiers for pattern, tiers in TOUCHED.items() if fnmatchcase(path, pattern)), ALL)


def touched_tiers(paths: Iterable[str]) -> list[str]:
    """Tiers that a change of these files touches, in the order of `TIERS`."""
    touched = set().union(*map(touched_by, paths))
    return [tier for tier in TIERS if tier in touched]


def changed_paths(root: Path = ROOT) -> list[str] | None:
    """Files that differ between the last full check and the working tree; None if unknown."""
    checked = root / ".ci" / "checked"
    commit = checked.read_text().strip() if checked.exists() else ""
    if not commit.isalnum():
        return None
    command = ["git", "diff", "--name-only", "--no-renames", "-z", commit, "--"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True)
    return None if listed.returncode else list(filter(None, listed.stdout.split("\0")))


def expression(tier: str) -> str:
    """Expression of marks that selects a tier, without what an earlier tier has run."""
    earlier = TIERS[: TIERS.index(tier)]
    return " and ".join([tier, *(f"not {other}" for other in earlier)])


def run_pytest(marks: str, files: Iterable[str] = ()) -> bool:
    """Run the tests that an expression of marks selects; whether none has failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal"]
    status = subprocess.run([*command, "-m", marks, *files], cwd=ROOT).returncode
    return status in (0, NOTHING_SELECTED)


def run_tiers(tiers: Iterable[str]) -> list[str]:
    """Run tiers one after the other, and print the time of each; those that have failed."""
    failed = []
    for tier in tiers:
        begin = time.monotonic()
        passed = run_pytest(expression(tier))
        print(f"== tier {tier}: {'passed' if passed else 'FAILED'} "
              f"in {time.monotonic() - begin:.0f} s", flush=True)  # fmt: skip
        if not passed:
            failed.append(tier)
    return failed


def main() -> int:
    """Read the command line, and run what it asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.tiers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tiers", nargs="*", metavar="TIER", help=", ".join(TIERS))
    parser.add_argument("--all", action="store_true", help="every tier")
    parser.add_argument("--list", action="store_true", help="name the tiers, and run nothing")
    options = parser.parse_args()
    unknown = sorted(set(options.tiers) - ALL)
    if unknown:
        parser.error(f"TIER must be one of {', '.join(TIERS)}, got {', '.join(unknown)}")

    tiers, files = options.tiers, []
    if not tiers:
        paths = None if options.all else changed_paths()
        tiers = list(TIERS) if paths is None else touched_tiers(paths)
        files = [
            path
            for path in paths or ()
            if fnmatchcase(path, "tests/test_*.py") and (ROOT / path).exists()
        ]
    print(f"tiers: {', '.join(tiers) or 'none'}")
    print(f"test files as a whole: {', '.join(files) or 'none'}", flush=True)
    if options.list:
        return 0
    failed = run_tiers(tiers)
    others = [tier for tier in TIERS if tier not in tiers]
    if files and others and not run_pytest(" or ".join(others), files):
        failed.append("test files as a whole")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
