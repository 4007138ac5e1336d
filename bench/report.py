"""One table of every kernel: time, rate, share of the read bandwidth, ratios to its rivals.

    python -m bench.report [--quick] [--only NAME] [--threads N] [--json PATH]

A new kernel is one entry in SUITES. The share is that of a plain sum over the same input, at the
same number of threads and in the same run: 100 % reads as fast as the machine does, in or out of
cache. A ratio above 1 means that dpkern is faster.
"""

import argparse
import json
import platform
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path

from threadpoolctl import threadpool_limits

from bench import bench_clip, bench_gaussian, bench_glm
from bench.cases import Case, measure, numba, read_test, refuse_other_work
from dpkern import _threads, kernels

SUITES = (bench_glm.cases, bench_clip.cases, bench_gaussian.cases)
RIVALS = ("numpy", "numba", "twin")


def run(case: Case, seconds: float) -> dict[str, object]:
    contenders, read = case.setup()
    refuse_other_work(case, contenders)
    if read is not None:
        contenders["read"] = read_test(read)
    times = measure(contenders, seconds)
    ours = times.median("dpkern")
    return {
        "kernel": case.kernel,
        "size": case.size,
        "seconds": {name: times.median(name) for name in contenders},
        "calls": {name: len(times.seconds[name]) for name in contenders},
        "rate": case.amount / ours,
        "unit": case.unit,
        "roofline": times.median("read") / ours if read is not None else None,
        "ratios": {name: times.median(name) / ours for name in RIVALS if name in contenders},
    }


def line(row: dict) -> str:
    unit = "GB/s" if row["unit"] == "B" else f"G{row['unit']}/s"
    share = "" if row["roofline"] is None else f"{100 * row['roofline']:.0f} %"
    ratios = [f"{row['ratios'][r]:9.2f}" if r in row["ratios"] else " " * 9 for r in RIVALS]
    return (
        f"{row['kernel']:14}{row['size']:>24}{1e3 * row['seconds']['dpkern']:11.3f}"
        f"{row['rate'] / 1e9:8.2f} {unit:9}{share:>8}{''.join(ratios)}"
    )


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

    chosen = [case for suite in SUITES for case in suite(options.quick)]
    chosen = [case for case in chosen if options.only in case.name]
    head = ["kernel", "size", "ms", "rate", "of read"] + [f"x {rival}" for rival in RIVALS]
    print("{:14}{:>24}{:>11}{:>13}{:>13}{:>9}{:>9}{:>9}".format(*head))
    rows = []
    limits = threadpool_limits(options.threads) if options.threads else nullcontext()
    with limits:
        if options.threads:
            _threads.usable_cores = lambda: options.threads
            if numba is not None:
                numba.set_num_threads(options.threads)
        for case in chosen:
            rows.append(run(case, seconds=0.5 if options.quick else 3.0))
            print(line(rows[-1]), flush=True)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    about = {"date": stamp.isoformat(), "machine": platform.processor(), **kernels.info()}
    about["threads"] = options.threads or about["n_threads"]
    options.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1))
    print(f"written to {options.json}")


if __name__ == "__main__":
    main()
