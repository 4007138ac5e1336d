"""Every block of Python in the documentation runs, page by page, and links lead somewhere."""

import codeop
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from inspect import ismodule
from pathlib import Path

import numpy as np
import pytest

from dpkern import datasets
from dpkern.cli import main
from dpkern.solvers import SOLVERS

PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CELL = re.compile(
    r"^```\{code-cell\}\n(:tags: \[remove-cell\]\n)?(.*?)^```$", re.DOTALL | re.MULTILINE
)
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NAME = re.compile(r"`(dpkern(?:\.\w+)+)[`(]")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


# Tests of their own run pages that read files, start processes or are scripts.
ELSEWHERE = {"schema.md", "federation.md", "cluster.md", "heart.md"}


def pages(source_tree):
    return sorted((source_tree / "docs").rglob("*.md"))


@pytest.mark.docs
def test_every_block_of_python_runs(source_tree, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = 0
    for path in pages(source_tree):
        if path.name in ELSEWHERE:
            continue
        names: dict[str, object] = {"__name__": "__main__"}
        for block in PYTHON.findall(path.read_text()):
            found += 1
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of examples on few records
                try:
                    exec(compile(block, str(path), "exec"), names)
                except Exception as error:
                    pytest.fail(f"{path.name}: {error!r} in\n{block}")
    capsys.readouterr()
    assert found > 5


def require_what_a_prompt_takes(blocks):
    """Fail where the interactive interpreter would refuse a line, as after an indented one.

    Blocks with blank lines within a body are for a file.
    """
    for block in (block for block in blocks if "\n\n    " not in block):
        waiting: list[str] = []
        for line in [*block.split("\n"), ""]:
            waiting.append(line)
            try:
                complete = codeop.compile_command("\n".join(waiting), symbol="single")
            except SyntaxError as error:
                pytest.fail(f"{error} in\n{block}")
            waiting = waiting if complete is None else []


@pytest.mark.docs
@pytest.mark.parametrize("page", [
    *("tutorials/adult", "tutorials/hospitals", "tutorials/lasso", "tutorials/study"),
    *("tutorials/torch", "papers/huang"),
])  # fmt: skip
def test_visible_cells_of_a_tutorial_run_as_pasted(page, source_tree, tmp_path, monkeypatch):
    """In one fresh interpreter, in a folder with what the page tells its reader to put there."""
    pytest.importorskip("matplotlib")
    if page.endswith("torch"):
        pytest.importorskip("torch")
    if page.endswith("adult"):
        if "DPKERN_DATA" not in os.environ:
            pytest.skip("the environment variable DPKERN_DATA is not set")
        for name in ("adult.data.xz", "adult.test.xz"):
            (tmp_path / name).symlink_to(Path(os.environ["DPKERN_DATA"], "adult", name))
        shutil.copy(source_tree / "examples" / "adult" / "schema.json", tmp_path)
    cells = CELL.findall((source_tree / "docs" / f"{page}.md").read_text())
    require_what_a_prompt_takes(code for hidden, code in cells if not hidden)
    (tmp_path / "pasted.py").write_text("\n".join(code for hidden, code in cells if not hidden))
    command = [sys.executable, "-W", "ignore", "pasted.py"]
    monkeypatch.delenv("DPKERN_DATA", raising=False)
    monkeypatch.setenv("MPLBACKEND", "agg")
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.docs
def test_the_tutorial_of_a_cluster_runs_as_a_script(source_tree, tmp_path):
    pytest.importorskip("distributed")
    blocks = PYTHON.findall((source_tree / "docs" / "tutorials" / "cluster.md").read_text())
    (tmp_path / "visits.py").write_text("\n\n".join(blocks))
    command = [sys.executable, "visits.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert "'local_newton': 11" in run.stdout
    assert "workers of a Dask cluster" in run.stdout
    assert 0.6 < float(re.search(r"^auc +(0\.\d+)", run.stdout, re.MULTILINE)[1]) < 0.9


def test_every_executed_page_is_tried_as_pasted(source_tree):
    (mark,) = (m for m in test_visible_cells_of_a_tutorial_run_as_pasted.pytestmark if m.args)
    executed = [page for page in pages(source_tree) if "```{code-cell}" in page.read_text()]
    docs = source_tree / "docs"
    assert {str(page.relative_to(docs).with_suffix("")) for page in executed} == set(mark.args[1])


def test_links_between_pages_lead_to_files(source_tree):
    others = [source_tree / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    for path in [*pages(source_tree), *others]:
        for target in LINK.findall(path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_reference_has_every_public_name(source_tree):
    text = (source_tree / "docs" / "reference" / "index.md").read_text()
    listed = re.findall(r"^   (dpkern[\w.]*)$", text, re.MULTILINE)
    modules = {name: module for name in listed if (module := named(name)) and ismodule(module)}
    # What is for whoever writes tests or a solver is documented in its own files.
    inner = {"dpkern.reference", "dpkern.solvers.base"}
    package = source_tree / "src"
    public = {
        ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__")
        for path in package.rglob("*.py")
        if re.search("^__all__ = ", path.read_text(), re.MULTILINE)
    }
    assert public - inner <= modules.keys()
    for name, module in modules.items():
        for member in getattr(module, "__all__", ()):
            if callable(getattr(module, member)):
                assert getattr(module, member).__doc__, f"{name}.{member}"


def test_dotted_names_of_the_documentation_are_there(source_tree):
    for path in [*pages(source_tree), source_tree / "README.md"]:
        for name in set(NAME.findall(path.read_text())):
            named(name.removesuffix("."))


def named(name):
    """The module, or the part of one, of a dotted name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        owner, _, member = name.rpartition(".")
        return getattr(named(owner), member)


def patients(folder):
    """Write what a hospital exports, and the public ranges of its columns."""
    table, (lo, hi) = datasets.wisconsin_table(), datasets.wisconsin_feature_range()
    names = [name.replace(" ", "_") for name in table.feature_names]
    labels = np.where(table.y == table.y[0], "malignant", "benign")
    rows = [",".join(map(repr, row)) for row in table.X.tolist()]
    columns = ",".join(names)
    files = {
        "patients.csv": [
            f"id,diagnosis,{columns}",
            *(f"{i},{labels[i]},{row}" for i, row in enumerate(rows)),
        ],
        "train.csv": [
            f"{columns},diagnosis",
            *(f"{row},{label}" for row, label in zip(rows, labels, strict=True)),
        ],
        "new.csv": [columns, *rows[:20]],
        "ranges.csv": [
            "name,lo,hi",
            *(f"{name},{a},{b}" for name, a, b in zip(names, lo, hi, strict=True)),
        ],
    }
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines) + "\n")


@pytest.mark.docs
def test_every_command_of_dpkern_runs(source_tree, tmp_path, monkeypatch, capsys):
    found = 0
    for path in pages(source_tree):
        commands = "\n".join(SHELL.findall(path.read_text())).replace("\\\n", " ").splitlines()
        if path.name in ELSEWHERE or not any(c.startswith("dpkern ") for c in commands):
            continue
        if "DPKERN_DATA" not in os.environ and "$DPKERN_DATA" in str(commands):
            continue
        folder = tmp_path / path.stem
        folder.mkdir()
        patients(folder)
        monkeypatch.chdir(folder)
        for command in commands:
            if command.startswith("dpkern "):
                found += 1
                words = shlex.split(os.path.expandvars(command), comments=True)[1:]
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of examples on few records
                    assert main(words) == 0, (path.name, command, capsys.readouterr().err)
            else:
                subprocess.run(command, shell=True, check=True)
    capsys.readouterr()
    assert found > 8


@pytest.mark.docs
@pytest.mark.parametrize("name", ["utility", "performance"])
def test_pages_of_measurements_are_what_their_numbers_say(name, source_tree, monkeypatch):
    monkeypatch.syspath_prepend(source_tree)
    writer = importlib.import_module(f"bench.{name}_page")
    assert writer.text(writer.PAGE) == writer.PAGE.read_text()


@pytest.mark.docs
def test_the_table_of_audits_is_what_its_numbers_say(source_tree, monkeypatch):
    monkeypatch.syspath_prepend(source_tree)
    audits = importlib.import_module("bench.audits")
    rows = json.loads(audits.NUMBERS.read_text())
    assert audits.page_table(rows) in (source_tree / "docs" / "audits.md").read_text()
    assert {row["solver"] for row in rows} == set(SOLVERS)


@pytest.mark.docs
def test_numbers_of_the_performance_page_are_those_of_the_report(source_tree, monkeypatch):
    monkeypatch.syspath_prepend(source_tree)
    writer = importlib.import_module("bench.performance_page")
    row = {
        "kernel": "glm_gradient",
        "size": "3 x 2",
        "seconds": {"dpkern": 0.002, "numpy": 0.006},
        "quartiles": {"dpkern": (0.0019, 0.0021), "numpy": (0.005, 0.007)},
        "rate": 123456.0,
        "unit": "B",
        "shares": {"read": 0.912},
        "ratios": {"numpy": 3.0},
    }
    fit = {"solver": "wd_dp", "data": "csr", "X": 2**20, "y": 2**20}
    fit |= {"peak": 2**22, "anonymous": 2**21, "allowed": 2**23}
    about = {"date": "d", "machine": "m", "isa": "v3", "n_threads": 2, "rates": {}}
    memory = {"fits": [fit], "import_seconds": 0.2}
    numbers = writer.numbers({"about": about, "rows": [row], "memory": memory})
    (case,), (kept,) = numbers["rows"], numbers["fits"]
    assert (case["seconds"], case["spread"], case["rate"]) == (0.002, 0.1, 123500.0)
    assert (case["shares"], case["ratios"]) == ({"read": 0.91}, {"numpy": 3.0})
    assert (kept["input"], kept["peak"], kept["anonymous"]) == (2.0, 4.0, 2.0)
