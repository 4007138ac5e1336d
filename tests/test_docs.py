"""Every block of Python in the documentation runs, page by page, and links lead somewhere."""

import re
import warnings

import pytest

PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


ELSEWHERE = {"schema.md"}  # tests/test_schema.py makes the files that it reads


def pages(source_tree):
    return sorted((source_tree / "docs").rglob("*.md"))


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


def test_links_between_pages_lead_to_files(source_tree):
    for path in [*pages(source_tree), source_tree / "README.md"]:
        for target in LINK.findall(path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
