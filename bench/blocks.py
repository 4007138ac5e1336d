"""Records in Parquet that are read in blocks: memory, rate beside pyarrow's, passes of a run.

    python -m bench.blocks [--records N] [--folder DIR]

It writes N x 30 numbers in single precision (30 million, 3.9 GB) to a temporary folder, which it
removes. docs/blocks.md has what it printed.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dpkern as dpk
from dpkern import kernels

COLUMNS, FILE_ROWS, GROUP_ROWS = 30, 1_000_000, 1 << 18
HOW = {"target": "y", "classes": [0, 1], "intercept": True, "row_bound": 8.0}


def write(folder, n):
    """Files of a million records each."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal(COLUMNS) / np.sqrt(COLUMNS)
    for i, first in enumerate(range(0, n, FILE_ROWS)):
        rows = min(FILE_ROWS, n - first)
        X = rng.standard_normal((COLUMNS, rows), dtype=np.float32)
        y = (w @ X + 0.5 + rng.logistic(size=rows) > 0.0).astype(np.int8)
        columns = {f"x{k}": X[k] for k in range(COLUMNS)} | {"y": y}
        pq.write_table(pa.table(columns), folder / f"{i:03}.parquet", row_group_size=GROUP_ROWS)


def timed(function):
    begin = time.perf_counter()
    found = function()
    return time.perf_counter() - begin, found


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


def measure(folder):
    """Print the figures of one process."""
    pa.set_cpu_count(2)
    files, before = sorted(folder.glob("*.parquet")), peak_mb()
    sizes = [k for k in (1, 3, 10, 30, 100) if k <= len(files)]
    for k in sizes:
        some = [str(path) for path in files[:k]]
        seconds, data = timed(lambda some=some: dpk.read_parquet(some, **HOW))
        n, w, pairs = data.n, np.full(COLUMNS + 1, 0.01), []
        for _ in range(3):
            plain, _ = timed(lambda some=some: read(some))
            passed, _ = timed(lambda data=data, w=w: kernels.glm_gradient(data, w, clip=1.0))
            pairs.append((plain, passed))
        plain, passed = (statistics.median(times) for times in zip(*pairs, strict=True))
        print(
            f"{n:>11,} records: first pass {1e9 * seconds / n:5.0f} ns a record, a sum of "
            f"gradients {1e9 * passed / n:5.0f}, pyarrow alone {1e9 * plain / n:5.0f}: "
            f"{100.0 * plain / passed:3.0f} % of its rate; peak {peak_mb() - before:,.0f} MB above "
            f"the interpreter's {before:,.0f}",
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
            f"in {seconds:.0f} s; peak {peak_mb() - before:,.0f} MB",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=30_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure is not None:
        measure(given.measure)
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        seconds, _ = timed(lambda: write(Path(name), given.records))
        size = sum(path.stat().st_size for path in Path(name).iterdir()) / 1e9
        print(f"wrote {size:.1f} GB in {seconds:.0f} s", flush=True)
        # Memory is that of a process which has not written the files.
        subprocess.run([sys.executable, "-m", "bench.blocks", "--measure", name], check=True)


if __name__ == "__main__":
    main()
