"""Small fixed runs of every solver and kernel, and the hashes of everything that they release.

`released_bits.json` holds, for every solver run, hashes of four parts: the model, the history, the
guarantee (the numbers of the certificate and of its releases, without words) and the certificate
(all of it). A change that moves only names and texts changes the last part alone. Calls may be
rewritten when arguments are renamed; ids and hashes stay.

    python tests/released_bits.py --diff [PATTERN]      which ids changed, and in which parts
    python tests/released_bits.py --record [PATTERN]    record what is released now

PATTERN limits both to ids that contain it; --threads K runs with so many threads.
"""

import argparse
import hashlib
import importlib
import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from released_calls import calls
from released_data import Matrix
from released_runs import DELTA, EPSILON, runs
from rounding import is_fused
from threadpoolctl import threadpool_info

import dpkern as dpk

importlib.import_module("scipy.linalg")  # loads the second BLAS, part of the environment

FILE = Path(__file__).with_suffix(".json")
SHOWN = 6  # ids of one kind in one group, where no pattern asks for all
PARTS = ("model", "history", "guarantee", "certificate")


def canonical(value: Any) -> Any:
    """What JSON holds, floats to the last bit, infinity in one form whatever the file's is."""
    if isinstance(value, float):
        return float(value).hex()
    if isinstance(value, Mapping):
        if set(value) == {"__float__"}:
            return float(value["__float__"]).hex()
        return {str(key): canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [canonical(item) for item in value]
    return value


def digest(value: Any) -> str:
    text = json.dumps(canonical(value), sort_keys=True).encode()
    return hashlib.sha256(text).hexdigest()[:16]


def bits(values: Any) -> str:
    """Hash of arrays, their shapes included."""
    found = hashlib.sha256()
    for array in _flat(values):
        found.update(str(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


def _flat(values: Any) -> Iterator[Matrix]:
    if isinstance(values, list | tuple):
        for value in values:
            yield from _flat(value)
    elif values is not None:
        yield np.asarray(values, dtype=np.float64)


def ten_digits(values: Any, most: int) -> list[float]:
    """At most so many of the numbers, evenly spaced, to ten significant digits."""
    flat = np.concatenate([array.ravel() for array in _flat(values)])
    chosen = flat[np.linspace(0, flat.size - 1, min(flat.size, most)).round().astype(int)]
    return [float(f"{x:.9e}") for x in chosen.tolist()]


# They change with the version, the time, and the bits of the model, which have their own hash.
OF_THE_FILE = ("package", "digest", "model", "started")
RELEASE = ("dim", "n_messages", "sensitivity", "std", "grid", "coins", "per_record", "times")


def guarantee(privacy: dpk.Certificate) -> dict[str, Any]:
    """The numbers of a certificate."""
    return {
        "mu": privacy.mu,
        "rho": privacy.rho,
        "zcdp": privacy.zcdp,
        "epsilon": privacy.epsilon(DELTA),
        "delta": privacy.delta(EPSILON),
        "draws": privacy.n_draws,
        "bound": privacy.bound,
        "amplified": privacy.amplified,
        "releases": [
            {name: getattr(release, name) for name in RELEASE}
            | {
                "sampling": release.sampling and dict(release.sampling),
                "mu2": str(release.mu_squared()),
            }
            for release in privacy.releases
        ],
    }


def measure(id: str, n_threads: int = 1) -> list[Any]:
    """The hashes of a run or a call, and its numbers to ten digits."""
    if id in calls():
        values = calls()[id](n_threads=n_threads)
        return [bits(values), ten_digits(values, 6)]
    result = runs()[id].run(n_threads)
    public = {"history": result.history, "rounds": result.n_rounds, "converged": result.converged}
    found = result.inference
    covariances = [] if found is None else [found.covariance, found.noise, found.lost]
    return [
        bits([result.w, *covariances]),
        digest(public),
        digest(guarantee(result.privacy)),
        digest({k: v for k, v in result.privacy.to_dict().items() if k not in OF_THE_FILE}),
        ten_digits(result.w, 40),
    ]


def environment() -> dict[str, Any]:
    """What bits may depend on beside the code."""

    def release(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    libraries = [lib for lib in threadpool_info() if lib["user_api"] == "blas"]
    named = ("internal_api", "version", "architecture")
    return {
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "fused multiply-add": is_fused(),
        "simd": np.show_config(mode="dicts")["SIMD Extensions"]["found"],
        "blas": sorted({" ".join(str(lib.get(name)) for name in named) for lib in libraries}),
        **{package: release(package) for package in ("numpy", "scipy", "dp-accounting")},
    }


def load() -> dict[str, Any]:
    return json.loads(FILE.read_text()) if FILE.exists() else {"environment": {}, "runs": {}}


def save(measured: dict[str, list[Any]]) -> None:
    """One line a run, so that a diff of the file reads well."""
    lines = [f" {json.dumps(id)}: {json.dumps(values)}" for id, values in sorted(measured.items())]
    runs = ",\n".join(lines)
    where = json.dumps(environment())
    FILE.write_text(f'{{"environment": {where},\n"runs": {{\n{runs}\n}}}}\n')


def changed(recorded: list[Any], measured: list[Any], *, same_environment: bool) -> list[str]:
    """Names of the parts that differ; in another environment of numbers that differ by 1e-6."""
    if same_environment:
        names = PARTS if len(measured) > 2 else ("output",)
        pairs = zip(names, recorded[:-1], measured[:-1], strict=True)
        return [name for name, old, new in pairs if old != new]
    old, new = np.array(recorded[-1]), np.array(measured[-1])
    close = old.shape == new.shape and np.allclose(
        new, old, rtol=1e-6, atol=1e-6 * np.abs(old).max(initial=0.0), equal_nan=True
    )
    return [] if close else ["numbers"]


def ids() -> list[str]:
    return [*runs(), *calls()]


def group_of(id: str) -> str:
    """A solver's name, or `kernels/` and the kernel's."""
    first, second = id.split("/")[:2]
    return first if first != "kernels" else f"kernels/{second}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare or record released bits.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--diff", action="store_true", help="print which ids changed in which parts")
    what.add_argument("--record", action="store_true", help="the same, and record them")
    parser.add_argument("pattern", nargs="?", default="", help="only ids that contain this")
    parser.add_argument("--threads", type=int, default=1, help="number of threads of every run")
    arguments = parser.parse_args()

    before, begin = load(), time.perf_counter()
    same = before["environment"] == environment()
    if not same:
        print("another environment than the recorded one: numbers are compared to 1e-6")
        for name, value in environment().items():
            if before["environment"].get(name) != value:
                print(f"  {name}: {before['environment'].get(name)} -> {value}")
    if arguments.record and arguments.pattern and not same:
        parser.error("PATTERN records some runs only, and the others are of another environment")
    chosen = [id for id in ids() if arguments.pattern in id]
    measured: dict[str, list[Any]] = {}
    found: dict[tuple[str, str], list[str]] = {}
    for id in chosen:
        try:
            measured[id] = measure(id, arguments.threads)
        except Exception as error:
            mark = f"FAILED ({type(error).__name__}: {str(error)[:120]})"
        else:
            mark = "new"
            if id in before["runs"]:
                parts = changed(before["runs"][id], measured[id], same_environment=same)
                mark = " ".join(parts)
        if mark:
            found.setdefault((mark, group_of(id)), []).append(id)
    gone = [id for id in before["runs"] if id not in ids() and arguments.pattern in id]
    for id in gone:
        found.setdefault(("gone", group_of(id)), []).append(id)
    for (mark, group), some in found.items():
        of = sum(group_of(id) == group for id in chosen)
        print(f"{mark}: {len(some)} of {of} in {group}")
        shown = some if arguments.pattern or len(some) <= SHOWN else some[: SHOWN - 1]
        for id in shown:
            print(f"    {id}")
        if len(shown) < len(some):
            print(f"    ... and {len(some) - len(shown)} more: --diff {group}/")
    counts: Counter[str] = Counter()
    for (mark, _), some in found.items():
        counts["failed" if mark.startswith("FAILED") else mark] += len(some)
    said = ", ".join(f"{number} {name}" for name, number in counts.items()) or "all as recorded"
    print(f"{len(chosen)} runs in {time.perf_counter() - begin:.1f} s: {said}")
    if arguments.record:
        if counts["failed"]:
            print("nothing recorded: some runs failed")
            return 1
        kept = before["runs"] if arguments.pattern else {}
        save({id: v for id, v in kept.items() if id not in gone} | measured)
        print(f"recorded in {FILE}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
