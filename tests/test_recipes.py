"""The recipes of CONTRIBUTING.md, applied to a copy of the tree, build and work."""

import re
import shlex
import subprocess
import sys
import tomllib

import pytest

SECTION = re.compile(r"^## Add an? (\w+)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
COMMANDS = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PATH = re.compile(r"`((?:src|tests)/[\w./]+\.\w+)`")


@pytest.fixture
def sections(source_tree):
    """The text of every recipe, by what it adds."""
    return dict(SECTION.findall((source_tree / "CONTRIBUTING.md").read_text()))


@pytest.fixture
def recipes(source_tree):
    with (source_tree / "tests" / "recipes.toml").open("rb") as file:
        return {recipe["id"]: recipe for recipe in tomllib.load(file)["recipe"]}


def located(root, name):
    """The file of a recipe, which may have moved below its folder."""
    if (root / name).exists():
        return root / name
    top = root.joinpath(*name.split("/")[:3])
    (path,) = top.rglob(name.rpartition("/")[2])
    return path


def edited(edit, root):
    """The file of an edit, and its text with the piece replaced."""
    path = located(root, edit["file"])
    piece = re.compile(r"\s+".join(map(re.escape, edit["old"].split())))
    text, count = piece.subn(lambda _: edit["new"].strip(), path.read_text())
    assert count == 1, f"{edit['file']}: {count} times {edit['old']!r}"
    return path, text


def apply(recipe, root):
    """Change the copy as the recipe says."""
    for new in recipe.get("new", ()):
        (root / new["file"]).write_text(new["text"])
    for edit in recipe["edit"]:
        path, text = edited(edit, root)
        path.write_text(text)


def test_every_recipe_has_an_example(sections, recipes):
    assert sections.keys() == recipes.keys()


def test_recipes_name_the_files_that_their_examples_change(sections, recipes, source_tree):
    for name, recipe in recipes.items():
        named = set(PATH.findall(sections[name]))
        changed = {part["file"] for part in (*recipe["edit"], *recipe.get("new", ()))}
        # Paths of the package privacy are given by what the files define.
        assert named == {file for file in changed if "/privacy/" not in file}, name
        for edit in recipe["edit"]:
            edited(edit, source_tree)


@pytest.mark.docs
def test_recipes_applied_to_a_copy_build_and_pass(
    sections, recipes, source_tree, tmp_path, monkeypatch
):
    if not (source_tree / ".git").exists():
        pytest.skip("a source distribution has no list of the tracked files")
    pytest.importorskip("mesonbuild")
    monkeypatch.syspath_prepend(source_tree)
    from tests.faults import Copy

    def change(root):
        for recipe in recipes.values():
            apply(recipe, root)

    copy = Copy(tmp_path, change)
    for name, text in sections.items():
        commands = "".join(COMMANDS.findall(text)).replace("\\\n", " ").splitlines()
        assert commands, name
        for command in commands:
            words = [sys.executable if word == "python" else word for word in shlex.split(command)]
            run = subprocess.run(
                words, cwd=copy.root, env=copy.environment, capture_output=True, text=True
            )
            assert run.returncode == 0, f"{name}: {command}\n{run.stdout[-4000:]}{run.stderr}"
