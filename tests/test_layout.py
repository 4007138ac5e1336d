"""Properties of the source tree: who imports whom, and what the wheel holds."""

import ast
import importlib.metadata
import re

import pytest

import dpkern

# Helpers that every module may use, which know of no other.
SHARED = {"_files", "_html", "_numbers", "_json", "_threads", "_typing", "_warn"}

# Who imports whom, exactly. A name with a slash is a part of a package, "/*" all parts of it;
# "solvers" are the modules on top.
IMPORTS = {
    "_core": "",
    "_openmp": "",
    "transcript": "",
    "stream": "_core transcript",
    "party": "stream",
    # Networks and oracles compute by kernels, which know losses and penalties only.
    "models/losses": "",
    "models/terms": "",
    "models/penalties": "models/terms",
    "models/scale": "kernels models/losses",
    "models/oracles": "kernels models/scale",
    "models/ordinal": "kernels models/oracles models/scale",
    "models/hazards": "kernels models/losses models/oracles models/scale",
    "models/networks": """
        kernels models/hazards models/losses models/oracles models/ordinal models/scale
    """,
    "kernels": "kernels _core models/losses models/penalties models/terms stream",
    "privacy": "privacy/* stream",
    # What is stated of a mechanism: from functions of epsilon to releases, certificates and files.
    "privacy/guarantees": "privacy/guarantees",
    "privacy/sampling": "privacy/sampling privacy/guarantees stream",
    "privacy/sensitivity": "privacy/sensitivity kernels privacy/guarantees",
    "privacy/certificate": "privacy/certificate privacy/guarantees privacy/sampling",
    "privacy/mechanisms": """
        privacy/mechanisms kernels party privacy/certificate privacy/guarantees
        privacy/sensitivity stream
    """,
    "privacy/accountant": """
        privacy/accountant privacy/certificate privacy/guarantees privacy/sampling
    """,
    # It does not rely on what it verifies.
    "verification": "verification",
    # Times to an event are labels by the intervals of their model.
    "data": "data kernels models/hazards",
    "io": "io data",
    "datasets": "data io",
    "solvers/base": """
        solvers/base data io kernels models/hazards models/losses models/networks models/oracles
        models/ordinal models/penalties models/scale models/terms party privacy/* stream
    """,
    "pooling": "solvers solvers/base",
    "solvers/releases": """
        solvers/releases data kernels models/losses models/networks models/oracles models/ordinal
        models/penalties models/scale papers/noise privacy/* solvers/base stream
    """,
    "papers/noise": "",
    "papers/bounds": "papers/bounds",
    "papers/diagnostics": "kernels models/losses solvers/base",
    "papers": "kernels privacy/* solvers/base solvers/releases",
    "solvers": """
        solvers data models/ordinal papers papers/noise party privacy/* solvers/base
        solvers/releases
    """,
    "candidates": "data models/networks privacy/* solvers solvers/base",
    "evaluation": "evaluation data models/hazards party privacy/* solvers",
    "selection": """
        candidates data evaluation kernels models/losses privacy/* solvers solvers/base stream
    """,
    "estimators": """
        estimators data models/hazards models/losses models/networks models/ordinal privacy/*
        selection solvers solvers/base
    """,
    "plotting": "",
    "planning": """
        data kernels models/losses models/scale plotting privacy/* solvers solvers/base
        solvers/releases
    """,
    "ranges": "data privacy/*",
    "cluster": "data io kernels",
    "auditing": "auditing auditing/one_run data plotting privacy/* solvers stream transcript",
    # Canaries are records with gradients of their own, which only models have.
    "auditing/canaries": "data models/oracles models/scale transcript",
    "auditing/one_run": """
        auditing auditing/canaries data models/networks models/oracles plotting privacy/* solvers
        stream
    """,
    # What all parties say and know; the engines are below, and know neither solvers nor records.
    "federated": """
        federated data evaluation federated/connections federated/journal federated/links
        federated/masking federated/mpyc_runtime federated/mpyc_sums federated/party
        federated/silo_journal federated/study models/hazards models/losses models/networks
        models/oracles models/ordinal models/penalties models/terms party privacy/* solvers
        solvers/base stream
    """,
    "federated/links": "",
    "federated/journal": "federated/links",
    "federated/masking": "federated/links stream",
    "federated/silo_journal": "federated/journal federated/links federated/masking stream",
    "federated/keys": "",
    "federated/mpyc_runtime": "federated/links federated/party",
    "federated/mpyc_sums": "federated/masking federated/mpyc_runtime federated/party party",
    "federated/party": "federated/links party stream",
    "federated/connections": """
        federated/flower federated/flower_superlink federated/keys federated/links federated/study
    """,
    "federated/flower": "federated/flower_wire federated/links",
    "federated/flower_superlink": "federated/flower_wire federated/links",
    "federated/flower_wire": "federated/links",
    "federated/study": "data federated/masking solvers",
    "cli": """
        cli auditing data datasets evaluation federated federated/connections federated/keys
        federated/links federated/study io kernels models/hazards models/losses models/networks
        models/ordinal models/penalties models/terms party planning plotting privacy/* solvers
        solvers/base verification
    """,
    "reference": "reference",
}
IMPORTS = {name: {*others.split()} for name, others in IMPORTS.items()}
IMPORTS |= {name: set() for name in SHARED}


def component_of(name):
    """The most specific entry of IMPORTS that a module belongs to."""
    parts = name.split(".")
    part = "/".join(parts[:2])
    return part if part in IMPORTS else parts[0]


def imported_components(path):
    """Packages of dpkern that a module imports when it runs, imports for type checkers aside."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.module == "dpkern.plotting" and node.col_offset:
                continue  # what draws a result imports it when it is called
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{a.name}" for a in node.names}  # a module, or what is in it
    return {name.removeprefix("dpkern.") for name in names if name.startswith("dpkern.")}


def test_imports_are_those_of_the_table(source_tree):
    package = source_tree / "src" / "dpkern"
    found = {name: set() for name in IMPORTS}
    for path in package.rglob("*.py"):
        name = ".".join(path.relative_to(package).with_suffix("").parts)
        if name in ("__init__", "__main__"):
            continue
        component = component_of(name.removesuffix(".__init__"))
        for target in imported_components(path):
            other = component_of(target)
            names = {other, f"{other.split('/')[0]}/*"} & (IMPORTS[component] | SHARED)
            assert names, f"{name} may not import dpkern.{target}"
            found[component] |= names - SHARED
    for component, allowed in IMPORTS.items():
        unused = allowed - found[component] - {component}
        assert not unused, f"nothing in {component} imports {', '.join(sorted(unused))}"


def test_no_python_file_is_longer_than_700_lines(source_tree):
    for path in (source_tree / "src" / "dpkern").rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 700, path.name


def test_a_solver_is_one_short_file(source_tree):
    for path in (source_tree / "src" / "dpkern" / "solvers").glob("*.py"):
        assert len(path.read_text().splitlines()) <= 120, path.name


def module_graph(package):
    """Which module of dpkern imports which, packages by the name of their folder."""
    paths = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    known = set(paths) - {"", "__main__"}
    graph = {}
    for name in known:
        targets = imported_components(paths[name])
        graph[name] = {t if t in known else t.rpartition(".")[0] for t in targets} & known
    return graph


def test_no_modules_import_one_another_in_a_circle(source_tree):
    graph, done, open_ = module_graph(source_tree / "src" / "dpkern"), set(), []

    def visit(name):
        assert name not in open_, " -> ".join([*open_[open_.index(name) :], name])
        if name not in done:
            open_.append(name)
            for target in sorted(graph[name]):
                visit(target)
            done.add(open_.pop())

    for name in sorted(graph):
        visit(name)


def test_reading_does_not_reach_kernels(source_tree):
    """`data -> kernels` is the one way from records to kernels, and leads nowhere back."""
    graph = module_graph(source_tree / "src" / "dpkern")
    for name, targets in graph.items():
        components = {target.split(".")[0] for target in targets}
        if name.split(".")[0] in ("io", "datasets"):
            assert "kernels" not in components, name
        if name.split(".")[0] == "kernels":
            assert not components & {"data", "io", "datasets"}, name


def test_what_privacy_offers_is_what_a_user_needs():
    """Machinery is imported from the modules that define it."""
    offered = [getattr(dpkern.privacy, name) for name in dpkern.privacy.__all__]
    assert len(offered) <= 16
    for thing in offered:
        assert ".mechanisms." not in thing.__module__


def test_kernels_are_files_of_one_idea_beside_each_other(source_tree):
    """Arguments know of no grid and no sweeps, and none of these of a kernel;
    kernels know of no other kernel and of no data."""
    folder = source_tree / "src" / "dpkern" / "kernels"
    helpers = {"_arguments": set(), "grids": {"_arguments"}}
    helpers |= {"_sweeps": {"_arguments", "grids"}, "_card": {"_arguments"}}
    helpers |= {"_gpu": {"_arguments", "_card"}, "_blocks": {"_arguments"}}
    for path in folder.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 400, path.name
        inside = {n.split(".")[1] for n in imported_components(path) if n.startswith("kernels.")}
        if path.stem != "__init__":
            assert inside <= helpers.get(path.stem, set(helpers)), path.name
        assert "data" not in imported_components(path), path.name


def test_reference_needs_numpy_only(source_tree):
    allowed = {"numpy", "math", "dpkern", "hashlib", "itertools", "functools", "statistics"}
    for path in (source_tree / "src" / "dpkern" / "reference").glob("*.py"):
        found = set(re.findall(r"^\s*(?:from|import)\s+(\w+)", path.read_text(), re.MULTILINE))
        assert found <= allowed, path.name


def test_c_never_sees_python_and_kernels_never_allocate_or_print(source_tree):
    for path in (source_tree / "src" / "csrc").rglob("*.[ch]"):
        text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        assert not re.search(
            r"Python\.h|\b(malloc|calloc|realloc|free|printf|abort|exit)\s*\(", text
        )


def test_folders_of_c_include_those_before_them(source_tree):
    csrc = source_tree / "src" / "csrc"
    order = ["core", "simd", "rows", "models", "noise", "glm", "admm", "mlp", "gpu"]
    joins = {"core/dispatch.h", "core/table.c"}
    for path in csrc.rglob("*.[ch]"):
        name = path.relative_to(csrc).as_posix()
        if name in joins:
            continue
        for folder in re.findall(r'#include "(\w+)/', path.read_text()):
            assert order.index(folder) <= order.index(name.split("/")[0]), f"{name}: {folder}"


def test_every_instruction_of_avx512_has_its_form_in_c(source_tree):
    named = set(re.findall(r"_mm\d+_\w+", (source_tree / "src/csrc/simd/avx512.h").read_text()))
    in_c = (source_tree / "tests/avx512_in_c.h").read_text()
    missing = named - set(re.findall(r"#define (_mm\w+)", in_c))
    # Others of 256 bits are there wherever it is built.
    assert not {name for name in missing if name.startswith("_mm512") or "maskz" in name}


def test_no_c_file_is_longer_than_300_lines(source_tree):
    for folder in (source_tree / "src" / "csrc", source_tree / "tests"):
        for path in folder.rglob("*.[ch]"):
            assert len(path.read_text().splitlines()) <= 300, path.name


def test_dir_lists_what_is_offered():
    assert dir(dpkern) == sorted(dpkern.__all__)
    assert len(dpkern.__all__) <= 35
    assert all(hasattr(dpkern, name) for name in dpkern.__all__)


def test_wheel_holds_every_python_file(source_tree):
    files = importlib.metadata.files("dpkern")
    if not any(str(f) == "dpkern/__init__.py" for f in files):
        pytest.skip("editable install: the wheel's file list is not here")
    installed = {str(f) for f in files if str(f).startswith("dpkern/")}
    installed = {f for f in installed if not f.endswith((".pyc", ".so", ".pyd"))}
    package = source_tree / "src" / "dpkern"
    source = {f"dpkern/{f.relative_to(package)}" for f in package.rglob("*") if f.is_file()}
    source = {f for f in source if "__pycache__" not in f}
    source = {f for f in source if not f.endswith((".pyx", ".pxd", ".pxi"))}
    assert installed == source


def test_the_version_is_that_of_the_build_in_all_files(source_tree):
    build = re.search(r"^  version: '(.+)',$", (source_tree / "meson.build").read_text(), re.M)
    cited = re.search(r"^version: (.+)$", (source_tree / "CITATION.cff").read_text(), re.M)
    assert build
    assert cited
    assert dpkern.__version__ == build[1] == cited[1]
