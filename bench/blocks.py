"""Records in Parquet that are read in blocks: memory, rate beside pyarrow's, passes of a run.

Where dask-ml is installed, its Newton method makes the same fit, without privacy.

    python -m bench.blocks [--records N] [--folder DIR]

It writes N x 30 numbers in single precision (30 million, 5.5 GB) to a temporary folder, which it
removes. docs/blocks.md has what it printed.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dpkern as dpk
from dpkern import kernels

COLUMNS, FILE_ROWS, GROUP_ROWS, TURNS = 30, 1_000_000, 1 << 18, 3
HOW = {"target": "y", "classes": [0, 1], "intercept": True, "row_bound": 8.0}


def coefficients(rng):
    return rng.standard_normal(COLUMNS) / np.sqrt(COLUMNS)


def write(folder, n):
    """Files of a million records each."""
    rng = np.random.default_rng(0)
    w = coefficients(rng)
    for i, first in enumerate(range(0, n, FILE_ROWS)):
        rows = min(FILE_ROWS, n - first)
        X = rng.standard_normal((COLUMNS, rows), dtype=np.float32)
        y = (w @ X + 0.5 + rng.logistic(size=rows) > 0.0).astype(np.int8)
        columns = {f"x{k}": X[k] for k in range(COLUMNS)} | {"y": y}
        pq.write_table(pa.table(columns), folder / f"{i:03}.parquet", row_group_size=GROUP_ROWS)


def timed(function):
    """Seconds, and those of all processors in this process; and what the function returns."""
    begin = time.perf_counter(), time.process_time()
    found = function()
    return np.array([time.perf_counter() - begin[0], time.process_time() - begin[1]]), found


def read(files):
    """All columns by pyarrow alone, in batches, with two threads."""
    for path in files:
        with pq.ParquetFile(path) as file:
            for _ in file.iter_batches(batch_size=1 << 17):
                pass


def peak_mb():
    """Largest resident memory of this process, without that of the one that began it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024.0


def rates(seconds, n):
    wall, cpu = 1e9 * seconds / n
    return f"{wall:.0f} ns a record, of processors {cpu:.0f}"


def measure(folder):
    """Print the figures of one process."""
    pa.set_cpu_count(2)
    files, before = sorted(folder.glob("*.parquet")), peak_mb()
    w, held, seconds = np.full(COLUMNS + 1, 0.01), {}, {}
    for k in [k for k in (1, 3, 10, 30, 100) if k <= len(files)]:
        some = [str(path) for path in files[:k]]
        first, data = timed(lambda some=some: dpk.read_parquet(some, **HOW))
        kernels.glm_gradient(data, w, clip=1.0)
        held[k], seconds[k] = (some, data), []
        print(
            f"{data.n:>11,} records: first pass {rates(first, data.n)}; peak "
            f"{peak_mb() - before:,.0f} MB above the interpreter's {before:,.0f}",
            flush=True,
        )
    for _ in range(TURNS):  # all sizes in turn, so that the load of others is that of all
        for k, (some, data) in held.items():
            pairs = []
            for _ in range(max(1, 10 // k)):  # of small sizes the mean of several
                plain, _ = timed(lambda some=some: read(some))
                passed, _ = timed(lambda data=data: kernels.glm_gradient(data, w, clip=1.0))
                pairs.append((plain, passed))
            seconds[k].append(np.mean(pairs, axis=0))
    for k, (_, data) in held.items():
        plain, passed = np.min(seconds[k], axis=0)
        print(
            f"{data.n:>11,} records: a sum of gradients {rates(passed, data.n)}, pyarrow alone "
            f"{rates(plain, data.n)}: {100.0 * plain[0] / passed[0]:.0f} % of its rate",
            flush=True,
        )
    passes, begin = [], data.blocks.blocks

    def counted():
        passes.append(1)
        return begin()

    data.blocks.blocks = counted
    budget = dpk.Budget(epsilon=1.0, delta=1e-9)
    for rounds in ("auto", 6):
        passes.clear()
        seconds, result = timed(
            lambda rounds=rounds: dpk.solve("local_newton", data, budget=budget, rounds=rounds)
        )
        print(
            f"local_newton, {result.n_rounds} rounds and the recalibration: {len(passes)} passes "
            f"in {seconds[0]:.0f} s, of processors {seconds[1]:.0f}; "
            f"peak {peak_mb() - before:,.0f} MB",
            flush=True,
        )


def beside_dask_ml(folder):
    """Print the time of one fit by dask-ml, and by dpkern of the same Dask arrays and files."""
    if find_spec("dask_ml") is None:
        print("dask-ml is not installed")
        return
    import dask.dataframe as dd
    from dask_ml.linear_model import LogisticRegression

    from dpkern.estimators import DPLogisticRegression

    paths = [str(path) for path in sorted(folder.glob("*.parquet"))[:3]]
    rows = dd.read_parquet(paths, split_row_groups=True).to_dask_array(lengths=True)
    X, y, budget = rows[:, :-1], rows[:, -1], dpk.Budget(epsilon=1.0, delta=1e-9)
    how = {"classes": [0, 1], "row_bound": 8.0, "solver": "local_newton", "C": 1e6}

    def of_files():
        return dpk.solve("local_newton", dpk.read_parquet(paths, **HOW), budget=budget, l2=1e-12)

    fits = {
        "read_parquet and dpkern.solve": lambda X, y: of_files(),
        "DPLogisticRegression of Dask arrays": DPLogisticRegression(1.0, 1e-9, **how).fit,
        "dask-ml, solver newton, not private": LogisticRegression(solver="newton").fit,
    }
    truth = coefficients(np.random.default_rng(0))
    for name, fit in fits.items():
        (wall, cpu), model = timed(lambda fit=fit: fit(X, y))
        w = model.w[:-1] if hasattr(model, "w") else np.ravel(model.coef_)
        cosine = w @ truth / (np.linalg.norm(w) * np.linalg.norm(truth))
        print(
            f"{len(y):,} records, {name}: {wall:.0f} s, of processors {cpu:.0f}; cosine to the "
            f"true coefficients {cosine:.5f}; peak so far {peak_mb():,.0f} MB",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=30_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--dask-ml", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    for measured, part in ((measure, given.measure), (beside_dask_ml, given.dask_ml)):
        if part is not None:
            measured(part)
            return
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        (seconds, _), _ = timed(lambda: write(Path(name), given.records))
        size = sum(path.stat().st_size for path in Path(name).iterdir()) / 1e9
        print(f"wrote {size:.1f} GB in {seconds:.0f} s", flush=True)
        # Memory is that of a process which has not written the files.
        for part in ("--measure", "--dask-ml"):
            subprocess.run([sys.executable, "-m", "bench.blocks", part, name], check=True)


if __name__ == "__main__":
    main()
