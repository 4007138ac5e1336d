"""Tiers of tests: marks, what a change touches, and the state of a release."""

import shutil
import subprocess
import sys
import tomllib

import pytest
from cases import for_each


@pytest.fixture
def tiers(source_tree, monkeypatch):
    monkeypatch.syspath_prepend(source_tree)
    from tests import tiers

    return tiers


@pytest.fixture
def release(source_tree, monkeypatch):
    monkeypatch.syspath_prepend(source_tree)
    from tests import release

    return release


def test_every_mark_is_a_tier_that_a_plain_run_leaves_out(tiers, source_tree):
    with (source_tree / "pyproject.toml").open("rb") as file:
        options = tomllib.load(file)["tool"]["pytest"]["ini_options"]
    assert [line.partition(":")[0] for line in options["markers"]] == list(tiers.TIERS)
    assert options["addopts"][-2:] == ["-m", f"not ({' or '.join(tiers.TIERS)})"]


@for_each(
    ("paths", "expected"),
    [
        ([], []),
        (["CHANGELOG.md", ".ci/checked", "LICENSE"], []),
        (["docs/design.md"], ["docs"]),
        (["README.md", "examples/papers/wd_dp.py", "bench/utility.py"], ["docs"]),
        (["src/dpkern/solvers/spider.py", "tests/test_solvers.py"], ["statistical"]),
        (["src/dpkern/solvers/base/run.py"], ["statistical", "processes", "docs", "proof"]),
        (["src/csrc/glm/glm.c"], ["isa", "statistical", "proof"]),
        (["src/dpkern/federated/flower.py"], ["processes", "docs"]),
        (
            ["src/dpkern/privacy/guarantees/gdp.py", "docs/index.md"],
            ["statistical", "docs", "proof"],
        ),
        (["pyproject.toml"], ["isa", "statistical", "processes", "docs", "proof"]),
        (["a/file/nobody/knows"], ["isa", "statistical", "processes", "docs", "proof"]),
        (["tests/conftest.py"], ["isa", "statistical", "processes", "docs", "proof"]),
    ],
)
def test_a_change_touches_the_tiers_of_its_files(tiers, paths, expected):
    assert tiers.touched_tiers(paths) == expected


def test_the_table_has_no_dead_rows(tiers, source_tree):
    """Each pattern is the first one that some file of the tree matches."""
    if not (source_tree / ".git").exists():
        pytest.skip("a source distribution has no list of the tracked files")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=source_tree, check=True, capture_output=True, text=True)
    used = {
        next((p for p in tiers.TOUCHED if tiers.fnmatchcase(path, p)), None)
        for path in listed.stdout.splitlines()
    }
    assert set(tiers.TOUCHED) <= used


@pytest.fixture
def clone(tmp_path):
    """A repository of two commits, and a function that runs git in it."""

    def git(*arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", *who, *arguments]
        return subprocess.run(
            command, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    (tmp_path / ".ci").mkdir()
    (tmp_path / "docs").mkdir()
    for name in ("docs/a.md", "docs/b.md", "meson.build"):
        (tmp_path / name).write_text("one\n")
    git("add", ".")
    git("commit", "-qm", "one")
    return tmp_path, git


def test_changes_count_from_the_last_full_check(tiers, clone):
    root, git = clone
    (root / ".ci" / "checked").write_text(git("rev-parse", "HEAD") + "\n")
    git("mv", "docs/a.md", "docs/c d.md")
    (root / "docs" / "b.md").write_text("two\n")
    git("add", ".")
    git("commit", "-qm", "two")
    changed = tiers.changed_paths(root)
    assert sorted(changed) == [".ci/checked", "docs/a.md", "docs/b.md", "docs/c d.md"]
    (root / "meson.build").write_text("two\n")  # not committed
    assert "meson.build" in tiers.changed_paths(root)


@pytest.mark.parametrize("checked", [None, "", "0" * 40, "--help", "no such commit"])
def test_without_a_known_full_check_every_tier_is_touched(tiers, clone, checked):
    root, _ = clone
    if checked is not None:
        (root / ".ci" / "checked").write_text(checked)
    assert tiers.changed_paths(root) is None


def test_no_test_is_in_two_runs_and_none_in_no_run(tiers):
    """Of the expressions of all tiers, exactly one holds for a test with any mark."""
    for chosen in range(1, 2 ** len(tiers.TIERS)):
        marks = {tier: bool(chosen >> i & 1) for i, tier in enumerate(tiers.TIERS)}
        assert sum(eval(tiers.expression(tier), {}, marks) for tier in tiers.TIERS) == 1


def test_an_unknown_tier_is_named(tiers, source_tree):
    command = [sys.executable, "-m", "tests.tiers", "docs", "slow"]
    run = subprocess.run(command, cwd=source_tree, capture_output=True, text=True)
    assert run.returncode == 2
    assert "TIER must be one of" in run.stderr
    assert "got slow" in run.stderr


STEPS = {"first": "echo one", "second": "test -e ../ready", "third": "echo three"}


@pytest.mark.processes
def test_a_release_goes_on_with_what_has_not_passed(release, tmp_path):
    (tmp_path / "clone").mkdir()
    state = release.Release(tmp_path, "c" * 40, STEPS)
    for step in STEPS:
        state.run(step)
    assert state.failed == ["second"]
    page = (tmp_path / "release.md").read_text()
    assert "Not passed: second." in page
    assert "failed (1)" in page
    (tmp_path / "ready").touch()

    again = release.Release(tmp_path, "c" * 40, STEPS)
    assert [step for step in STEPS if not again.has_passed(step)] == ["second"]
    again.run("second")
    assert not again.failed
    assert "All steps passed." in (tmp_path / "release.md").read_text()
    assert release.json.loads((tmp_path / "release.json").read_text())["passed"]


@pytest.mark.processes
def test_a_release_is_of_a_tree_without_changes(source_tree, tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for name in ("tests/release.py", "tests/tiers.py", "bench/machine.py", "bench/cases.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(source_tree / name, tmp_path / name)
    command = [sys.executable, "-m", "tests.release"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 2
    assert "must have no changes" in run.stderr
