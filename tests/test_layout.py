"""Laws of the source tree: who imports whom, and what the wheel holds."""

import ast
import graphlib
import importlib.metadata
import re

import pytest

import dpkern

ARROWS = {
    "_core": set(),
    "_files": set(),
    "_numbers": set(),
    "_threads": set(),
    "_csr": {"_read_only_csr"},
    "_read_only_csr": set(),
    "_checks": {"_csr"},
    "_partition": {"_checks", "_numbers"},
    "losses": {"_numbers"},
    "regularizers": {"_numbers"},
    "oracles": {"kernels", "losses", "_numbers"},
    "stream": {"_core"},
    "_serialize": set(),
    "kernels": {"_core", "_numbers", "_threads", "losses", "regularizers", "stream"},
    "privacy": {"privacy", "kernels", "stream", "_numbers", "_serialize"},
    "papers": {"privacy", "kernels", "stream", "_numbers"},
    "data": {"kernels", "_checks", "_csr", "_numbers", "_partition"},
    "datasets": {"data", "_checks", "_csr", "_numbers"},
    "solvers": {
        *("solvers", "privacy", "papers", "kernels", "data", "losses", "oracles", "regularizers"),
        *("stream", "_csr", "_files", "_numbers", "_serialize"),
    },
    "plotting": {"_files"},
    "cli": {
        *("solvers", "privacy", "data", "datasets", "plotting", "kernels", "losses"),
        *("_csr", "_files", "_numbers"),
    },
    "reference": {"reference"},
}

# Inside the room of privacy: what each module may import of it. A name with a dot is one module.
_ROUNDING = {"_exact"}
PRIVACY = {
    "_exact": set(),
    "report": set(),
    "subsets": set(),
    "accounting": set(),
    "gdp": _ROUNDING,
    "budget": {"gdp"} | _ROUNDING,
    "shuffle.binomial": _ROUNDING,
    "shuffle.zcdp": _ROUNDING,
    "shuffle.protocol": set(),
    "recursions": _ROUNDING,
    "participation": {"subsets"},
    "record_sampling": {"accounting", "subsets"},
    "ledger": {"accounting", "report", "shuffle.binomial"},
    "channel": {"ledger"},
    "certificate": {"accounting", "gdp", "ledger", "report", "shuffle.zcdp"} | _ROUNDING,
    "composition": {"certificate"} | _ROUNDING,
    "mechanisms.grids": _ROUNDING,
    "mechanisms.gaussian_sum": {"channel", "ledger", "mechanisms.grids"} | _ROUNDING,
    "mechanisms.hessian": {"channel", "mechanisms.grids"} | _ROUNDING,
    "mechanisms.messages": {"channel", "ledger", "mechanisms.grids"} | _ROUNDING,
    "mechanisms.binomial_sum": {"channel", "shuffle.binomial"} | _ROUNDING,
    "mechanisms.last_iterate": {"channel", "local_runs", "mechanisms.grids", "recursions"}
    | _ROUNDING,
    "local_runs": {"mechanisms.grids", "recursions"} | _ROUNDING,
}


def room_of(path, package):
    parts = path.relative_to(package).with_suffix("").parts
    return parts[0]


def imported_rooms(path):
    """Rooms of dpkern that a module imports when it runs, imports for type checkers aside."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module
            names |= {f"{module}.{a.name}" if module == "dpkern" else module for a in node.names}
    return {name.removeprefix("dpkern.") for name in names if name.startswith("dpkern.")}


def test_imports_follow_the_arrows(source_tree):
    package = source_tree / "src" / "dpkern"
    for path in package.rglob("*.py"):
        room = room_of(path, package)
        if room in ("__init__", "__main__"):
            continue
        for target in imported_rooms(path):
            allowed = {target, target.split(".")[0]} & ARROWS[room]
            assert allowed, f"{path.relative_to(package)} may not import dpkern.{target}"


def test_modules_of_privacy_follow_their_arrows_without_a_circle(source_tree):
    """The table above is exact, and has an order in which no module imports a later one."""
    room = source_tree / "src" / "dpkern" / "privacy"
    found = {}
    for path in room.rglob("*.py"):
        name = ".".join(path.relative_to(room).with_suffix("").parts)
        if not name.endswith("__init__"):
            targets = (t.partition(".") for t in imported_rooms(path))
            found[name] = {rest for top, _, rest in targets if top == "privacy"}
    assert found == PRIVACY
    list(graphlib.TopologicalSorter(found).static_order())


def test_no_python_file_of_privacy_is_longer_than_450_lines(source_tree):
    for room in ("privacy", "papers"):
        for path in (source_tree / "src" / "dpkern" / room).rglob("*.py"):
            assert len(path.read_text().splitlines()) <= 450, path.name


def test_what_privacy_offers_is_what_a_user_needs():
    """Machinery is imported from the modules that define it."""
    offered = [getattr(dpkern.privacy, name) for name in dpkern.privacy.__all__]
    assert len(offered) <= 16
    for thing in offered:
        assert ".mechanisms." not in thing.__module__


def test_reference_needs_numpy_only(source_tree):
    allowed = {"numpy", "math", "dpkern", "hashlib", "itertools", "functools", "statistics"}
    for path in (source_tree / "src" / "dpkern" / "reference").glob("*.py"):
        found = set(re.findall(r"^\s*(?:from|import)\s+(\w+)", path.read_text(), re.MULTILINE))
        assert found <= allowed, path.name


def test_c_never_sees_python_and_kernels_never_allocate_or_print(source_tree):
    for path in (source_tree / "src" / "csrc").glob("*.[ch]"):
        text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        assert not re.search(
            r"Python\.h|\b(malloc|calloc|realloc|free|printf|abort|exit)\s*\(", text
        )


def test_wheel_holds_every_python_file(source_tree):
    files = importlib.metadata.files("dpkern")
    if not any(str(f) == "dpkern/__init__.py" for f in files):
        pytest.skip("editable install: the wheel's file list is not here")
    installed = {str(f) for f in files if str(f).startswith("dpkern/")}
    installed = {f for f in installed if not f.endswith((".pyc", ".so", ".pyd"))}
    package = source_tree / "src" / "dpkern"
    source = {f"dpkern/{f.relative_to(package)}" for f in package.rglob("*") if f.is_file()}
    source = {f for f in source if "__pycache__" not in f and not f.endswith(".pyx")}
    assert installed == source
