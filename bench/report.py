"""One table of every kernel: time, rate, share of the read bandwidth, ratios to its rivals.

    python -m bench.report [--quick] [--only NAME] [--threads N] [--json PATH]

A new kernel is one entry in SUITES. The share is that of the fastest plain sum over the same input
at the same number of threads in the same run: 100 % reads as fast as the machine does, in or out
of cache; for local_descent and whole solvers it is the bandwidth of memory. A ratio above 1 means
that dpkern is faster. A goal that is missed is named below its line; goals are for the full sizes.
One thread is timed in processor time, which other work on the machine delays less.
docs/performance.md says how to read the table.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from bench import (
    bench_admm,
    bench_clip,
    bench_custom,
    bench_difference,
    bench_gaussian,
    bench_glm,
    bench_hessian,
    bench_local_descent,
    bench_local_newton,
    bench_many,
    bench_mlp,
    bench_newton,
    bench_prox,
    bench_shuffle,
    bench_sparse,
    bench_spider,
    bench_wd_dp,
    memory,
)
from bench.cases import READERS, Case, measure, numba, out_of_cache, readers
from dpkern import _threads, kernels

SUITES = (
    bench_glm.cases,
    bench_many.cases,
    bench_difference.cases,
    bench_local_descent.cases,
    bench_local_newton.cases,
    bench_newton.cases,
    bench_sparse.cases,
    bench_custom.cases,
    bench_hessian.cases,
    bench_admm.cases,
    bench_mlp.cases,
    bench_spider.cases,
    bench_clip.cases,
    bench_gaussian.cases,
    bench_prox.cases,
    bench_shuffle.cases,
    bench_wd_dp.cases,
)
RIVALS = ("numpy", "numba", "twin")
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def busy_seconds() -> float:
    """Processor seconds that this machine has spent on other work than this process; 0 where
    /proc does not say."""
    try:
        user, nice, system, _, _, irq, softirq, steal = map(
            int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        )
    except (OSError, ValueError):
        return 0.0
    everybody = (user + nice + system + irq + softirq + steal) / CLOCK_TICKS
    return everybody - sum(os.times()[:2])


def run(case: Case, seconds: float, clock: Callable[[], float]) -> dict[str, object]:
    contenders, read = case.setup()
    begin, busy = time.perf_counter(), busy_seconds()
    times = measure(case, contenders, read, seconds, clock=clock)
    others = (busy_seconds() - busy) / (time.perf_counter() - begin)
    medians = {name: times.median(name) for name in times.seconds}
    ours = medians["dpkern"]
    no_rivals = ("dpkern", *READERS, *case.limits)
    ratios = {name: t / ours for name, t in medians.items() if name not in no_rivals}
    shares = {name: case.amount / ours * medians[name] / n for name, n in case.limits.items()}
    share = None
    if read is not None:
        bandwidth = read.nbytes / min(medians[name] for name in READERS if name in medians)
        share = case.amount / ours / bandwidth
    reached = ratios | shares | ({} if share is None else {"read": share})
    return {
        "kernel": case.kernel,
        "size": case.size,
        "seconds": medians,
        "calls": {name: len(times.seconds[name]) for name in medians},
        "rate": case.amount / ours,
        "unit": case.unit,
        "roofline": share,
        "ratios": ratios,
        "shares": shares,
        "missed": {
            name: {"goal": goal, "reached": reached[name]}
            for name, goal in case.goals.items()
            if name in reached and reached[name] < goal
        },
        "other_work": others,
    }


HEAD = "{:17}{:>34}{:>11}{:>13}{:>9}".format("kernel", "size", "ms", "rate", "of read")
HEAD += "".join(f"{'x ' + rival:>9}" for rival in RIVALS) + "   others"


def line(row: dict) -> str:
    unit = "GB/s" if row["unit"] == "B" else f"G{row['unit']}/s"
    share = "" if row["roofline"] is None else f"{100 * row['roofline']:.0f} %"
    ratios = [f"{row['ratios'][r]:9.2f}" if r in row["ratios"] else " " * 9 for r in RIVALS]
    rest = [f"{100 * x:.0f} % of {name}" for name, x in row["shares"].items()]
    rest += [f"x {name} {x:.2f}" for name, x in row["ratios"].items() if name not in RIVALS]
    text = (
        f"{row['kernel']:17}{row['size']:>34}{1e3 * row['seconds']['dpkern']:11.3f}"
        f"{row['rate'] / 1e9:7.2f} {unit:5}{share:>9}{''.join(ratios)}   {', '.join(rest)}"
    ).rstrip()
    for name, m in row["missed"].items():
        text += f"\n    missed: x {name} {m['reached']:.2f}, goal {m['goal']:.2f}"
    if row["other_work"] > 0.2:
        text += f"\n    other work took {row['other_work']:.1f} cores meanwhile"
    return text


def machine() -> str:
    """Processor, cores and caches as Linux names them."""
    try:
        text = Path("/proc/cpuinfo").read_text()
        model = next(t for t in text.splitlines() if t.startswith("model name")).partition(": ")[2]
        caches = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"))
        sizes = {
            f"L{(c / 'level').read_text().strip()} {(c / 'size').read_text().strip()}"
            for c in caches
            if (c / "type").read_text().strip() != "Instruction"
        }
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
    return f"{model}, {os.cpu_count()} cores, {', '.join(sorted(sizes))}"


def best_of(call: Callable[[], object], clock: Callable[[], float], times: int = 5) -> float:
    call()
    seconds = []
    for _ in range(times):
        begin = clock()
        call()
        seconds.append(clock() - begin)
    return min(seconds)


def limits_of(quick: bool, clock: Callable[[], float]) -> dict[str, float]:
    """The machine's own: bandwidth of memory, rate of a matrix product."""
    size = 512 if quick else 2048
    A = np.ones((size, size))
    a = out_of_cache(2**22) if quick else out_of_cache()
    return {
        "read_bandwidth": a.nbytes / min(best_of(call, clock) for call in readers(a).values()),
        "dgemm": 2.0 * size**3 / best_of(lambda: A @ A, clock),
    }


def warn_of_load(when: str) -> float:
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"load average {load:.2f} at the {when}: figures of all threads may be off")
    return load


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="small sizes, a few seconds in all")
    parser.add_argument("--only", default="", metavar="NAME", help="cases whose name holds NAME")
    parser.add_argument("--threads", type=int, help="for dpkern, BLAS, numba and the read test")
    stamp = datetime.now().astimezone()
    results = Path(__file__).parent / "results" / f"{stamp:%Y-%m-%dT%H%M%S}.json"
    parser.add_argument("--json", type=Path, default=results, help="default: bench/results/<date>")
    options = parser.parse_args()

    load = [warn_of_load("start")]
    with threadpool_limits(options.threads) if options.threads else nullcontext():
        if options.threads:
            # Also what kernels.info and the number of contenders go by.
            kernels.usable_cores = _threads.usable_cores = lambda: options.threads
            if numba is not None:
                numba.set_num_threads(options.threads)
        one = kernels.info()["n_threads"] == 1
        clock = time.process_time if one else time.perf_counter
        about = {"date": stamp.isoformat(), "machine": machine(), **kernels.info()}
        about |= limits_of(options.quick, clock)
        print(
            f"{about['machine']}; {about['isa']}, {about['n_threads']} threads; "
            f"read {about['read_bandwidth'] / 1e9:.1f} GB/s, dgemm {about['dgemm'] / 1e9:.0f} GF/s"
        )
        print(HEAD)
        rows = []
        for case in (case for suite in SUITES for case in suite(options.quick)):
            if options.only in case.name:
                if options.quick:
                    case = replace(case, goals={})
                rows.append(run(case, 0.2 if options.quick else 3.0, clock))
                print(line(rows[-1]), flush=True)
    children = memory.main(options.quick) if options.only in ("", "memory") else None
    # The load average of the end counts this process too; `other_work` does not.
    load.append(os.getloadavg()[0])
    about["load_average"] = load
    options.json.parent.mkdir(parents=True, exist_ok=True)
    results = {"about": about, "rows": rows, "memory": children}
    options.json.write_text(json.dumps(results, indent=1))
    print(
        f"load average {load[0]:.2f} at the start, {load[1]:.2f} at the end (own threads included)"
    )
    print(f"written to {options.json}")


if __name__ == "__main__":
    main()
