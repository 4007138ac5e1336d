"""Peak memory of a fit, and the time that importing dpkern takes: in child processes.

    python -m bench.memory

The peak (VmHWM) is counted above what the child holds before it loads X and y, when modules are
imported and threads started. Pages of a memory map are the
file's, which the system may drop at any time: for mapped data the anonymous memory (RssAnon, looked
at every millisecond) is held against the bound, and the whole is printed beside it.
"""

import json
import statistics
import subprocess
import sys
import tempfile

import numpy as np
from scipy import sparse

CHILD = """
import json, sys, threading, time
import numpy as np
import scipy.sparse
import dpkern as dpk

what, folder, solver, parameters = json.loads(sys.argv[1])
shape = parameters.pop("shape", None)

def status(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field)) * 1024

def make(n, X, y, offsets):
    data = dpk.SiloData(X, y, offsets, row_bound=1.0)
    budget = dpk.Budget(epsilon=1.0, delta=1e-6)
    return dpk.solve(solver, data, budget=budget, clip=1.0, l2=1e-3, step_size=0.5, **parameters)

rng = np.random.default_rng(0)
X = rng.standard_normal((1000, 3))
make(1000, X, np.sign(X[:, 0]), [0, 500, 1000])  # loads what is loaded late, starts the threads

most_anonymous, done = 0, threading.Event()
def watch():
    global most_anonymous
    while not done.is_set():
        most_anonymous = max(most_anonymous, status("RssAnon"))
        time.sleep(0.001)
before = status("RssAnon"), status("VmRSS")
thread = threading.Thread(target=watch)
thread.start()
if what == "csr":
    parts = (np.load(f"{folder}/csr_{k}.npy") for k in ("data", "indices", "indptr"))
    X = scipy.sparse.csr_array(tuple(parts), shape=shape)
    size = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
else:
    X = np.load(f"{folder}/X.npy", mmap_mode="r" if what == "memory map" else None)
    size = X.nbytes
y = np.load(f"{folder}/y.npy")
offsets = np.linspace(0, len(y), 33).astype(int)
result = make(len(y), X, y, offsets)
done.set()
thread.join()
peak = status("VmHWM")
print(json.dumps({
    "n": len(y), "X": size, "y": y.nbytes, "solver": solver, "data": what,
    "anonymous": most_anonymous - before[0], "peak": peak - before[1],
}))
"""

IMPORT = """
import time
import numpy, scipy
begin = time.perf_counter()
import dpkern
print(time.perf_counter() - begin)
"""


def child(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def allowed(row: dict) -> float:
    """1.1 (X + y) and 16 bytes a row; of mapped data X is no memory of the process."""
    own = row["y"] + 0.1 * row["X"] if row["data"] == "memory map" else row["X"] + row["y"]
    slack = 0.1 * row["y"] if row["data"] == "memory map" else 0.1 * (row["X"] + row["y"])
    return own + slack + 16 * row["n"]


def fits(quick: bool) -> list[dict]:
    """Bytes of every fit, one dict a row of the table."""
    n, d = (50_000, 54) if quick else (500_000, 54)
    rng = np.random.default_rng(0)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        X = rng.standard_normal((n, d)) / np.sqrt(d)
        np.save(f"{folder}/X.npy", X)
        np.save(f"{folder}/y.npy", np.sign(X[:, 0]))
        X[rng.random((n, d)) > 0.1] = 0.0
        csr = sparse.csr_array(X)
        np.save(f"{folder}/csr_data.npy", csr.data)
        np.save(f"{folder}/csr_indices.npy", csr.indices.astype(np.int32))
        np.save(f"{folder}/csr_indptr.npy", csr.indptr.astype(np.int32))
        del X, csr
        for solver, parameters in (
            ("gradient_descent", {"rounds": 5}),
            ("wd_dp", {"local_steps": 5}),
        ):
            for what in ("array", "memory map", "csr"):
                options = parameters | ({"shape": (n, d)} if what == "csr" else {})
                told = json.dumps([what, folder, solver, options])
                row = json.loads(child(CHILD, told))
                rows.append(row | {"allowed": allowed(row)})
    return rows


def import_seconds(times: int = 7) -> float:
    """Median time of importing dpkern after NumPy and SciPy."""
    return statistics.median(float(child(IMPORT)) for _ in range(times))


def held(row: dict) -> float:
    return row["anonymous"] if row["data"] == "memory map" else row["peak"]


def line(row: dict) -> str:
    mib = {key: row[key] / 2**20 for key in ("X", "y", "peak", "anonymous", "allowed")}
    verdict = "" if held(row) <= row["allowed"] else "  MISSED"
    return (
        f"{row['solver']:18}{row['data']:12}{mib['X'] + mib['y']:10.1f}{mib['peak']:10.1f}"
        f"{mib['anonymous']:12.1f}{mib['allowed']:10.1f}{verdict}"
    )


HEAD = f"{'fit, MiB':18}{'data':12}{'X + y':>10}{'peak':>10}{'anonymous':>12}{'allowed':>10}"


def main(quick: bool = False) -> dict[str, object]:
    print(HEAD)
    rows = fits(quick)
    for row in rows:
        print(line(row))
    seconds = import_seconds(3 if quick else 7)
    print(f"import of dpkern after NumPy and SciPy: {seconds:.3f} s (goal 0.25)")
    return {"fits": rows, "import_seconds": seconds}


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
