"""One table of every kernel: time, spread, rate, share of its limit, ratios to its rivals.

    python -m bench.report [--quick] [--only NAME] [--native] [--threads N] [--json PATH]
        [--page FILE.md]

A new kernel is one entry in SUITES. The time is the median of single calls and the spread their
interquartile range in percent of it. Ratios are medians over turns, or of so few calls that there
are no three turns, ratios of medians. The share of read is that of the fastest plain sum over the
same input at the same number of threads in the same run: 100 % reads as fast as the machine does,
in or out of cache; for local_descent and whole solvers it is the bandwidth of memory. Shares of
other limits follow the ratios. A ratio above 1 means that dpkern is faster. All goals, which are
for the full sizes, are listed at the end with what was measured. One thread is timed in processor
time, which other work on the machine delays less.

Between the cases the report measures how fast the machine reads memory and multiplies matrices. A
case is measured again, up to three times, if one of these rates was more than 10 % below the run's
best before or after it; what stays so is marked. With --page the page docs/performance.md and its
numbers are written.
"""

import argparse
import json
import os
import time
import warnings
from contextlib import nullcontext
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from bench import (
    bench_admm,
    bench_clip,
    bench_compare,
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
    bench_products,
    bench_prox,
    bench_rounds,
    bench_shuffle,
    bench_sparse,
    bench_spider,
    bench_wd_dp,
    machine,
    memory,
    performance_page,
)
from bench.cases import READERS, Case, Times, measure, numba
from bench.native import seconds_in_c
from bench.performance_page import rate_of
from dpkern import _threads
from dpkern.kernels import installation
from dpkern.solvers.base.outcome import NothingLearntWarning

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
    bench_products.cases,
    bench_admm.cases,
    bench_mlp.cases,
    bench_spider.cases,
    bench_clip.cases,
    bench_gaussian.cases,
    bench_prox.cases,
    bench_shuffle.cases,
    bench_wd_dp.cases,
    bench_rounds.cases,
    bench_compare.cases,
)
RIVALS = ("numpy", "numba", "twin")


def run(case: Case, seconds: float, watch: machine.Watch, native: bool) -> dict[str, Any]:
    """Measure a case; the row of it in the table and in the JSON file."""
    contenders, read = case.setup()
    times, around = watch.steadily(
        lambda: measure(case, contenders, read, seconds, clock=watch.clock)
    )
    row = row_of(case, times, None if read is None else read.nbytes)
    if native:
        row["native"] = seconds_in_c(contenders["dpkern"], 0.1 * seconds, watch.clock)
    return row | asdict(around)


def row_of(case: Case, times: Times, bytes_read: int | None) -> dict[str, Any]:
    quartiles = {name: times.quartiles(name) for name in times.turns}
    medians = {name: median for name, (_, median, _) in quartiles.items()}
    ours = medians["dpkern"]
    no_rivals = ("dpkern", *READERS, *case.limits)
    ratios = {name: times.ratio(name, "dpkern") for name in medians if name not in no_rivals}
    shares = {
        name: case.amount * times.ratio(name, "dpkern") / n for name, n in case.limits.items()
    }
    if bytes_read is not None:
        reading = min(times.ratio(name, "dpkern") for name in READERS if name in medians)
        shares = {"read": case.amount * reading / bytes_read} | shares
    reached = ratios | shares | {"seconds": ours}
    return {
        "kernel": case.kernel,
        "size": case.size,
        "seconds": medians,
        "quartiles": {name: (low, high) for name, (low, _, high) in quartiles.items()},
        "calls": {name: len(times.seconds(name)) for name in medians},
        "rate": case.amount / ours,
        "unit": case.unit,
        "ratios": ratios,
        "shares": shares,
        "goals": {
            name: {
                "goal": goal,
                "measured": reached[name],
                "met": reached[name] <= goal if name == "seconds" else reached[name] >= goal,
            }
            for name, goal in case.goals.items()
            if name in reached
        },
    }


def head(native: bool) -> str:
    columns = "{:17}{:>38}{:>11}{:>6}".format("kernel", "size", "ms", "iqr")
    columns += f"{'in C':>11}" if native else ""
    columns += f"{'rate':>18}{'of read':>9}"
    return columns + "".join(f"{'x ' + rival:>9}" for rival in RIVALS) + "   others"


def line(row: dict[str, Any], watch: machine.Watch) -> str:
    ours = row["seconds"]["dpkern"]
    low, high = row["quartiles"]["dpkern"]
    of_read = f"{100 * row['shares']['read']:.0f} %" if "read" in row["shares"] else ""
    ratios = [f"{row['ratios'][r]:9.2f}" if r in row["ratios"] else " " * 9 for r in RIVALS]
    rest = [f"{100 * x:.0f} % of {name}" for name, x in row["shares"].items() if name != "read"]
    rest += [f"x {name} {x:.2f}" for name, x in row["ratios"].items() if name not in RIVALS]
    in_c = f"{1e3 * row['native']:11.3f}" if "native" in row else ""
    spread = f"{100 * (high - low) / ours:.0f} %"
    text = f"{row['kernel']:17}{row['size']:>38}{1e3 * ours:11.3f}{spread:>6}{in_c}"
    text += f"{rate_of(row):>18}{of_read:>9}{''.join(ratios)}   {', '.join(rest)}"
    text = text.rstrip()
    if watch.share(row["rates"]) < machine.STEADY:
        text += f"\n    {disturbed(row, watch)}, tries: {row['tries']}"
    if row["other_work"] > 0.2:
        text += f"\n    other work took {row['other_work']:.1f} cores meanwhile"
    return text


def disturbed(row: dict[str, Any], watch: machine.Watch) -> str:
    """What is said of a measurement with lower rates of the machine beside it."""
    return f"on a disturbed machine ({100 * watch.share(row['rates']):.0f} % of its best rates)"


def goals(rows: list[dict[str, Any]], watch: machine.Watch) -> str:
    """The table of all goals, with what was measured."""
    lines = ["{:55}{:>25}{:>10}{:>10}".format("goal", "", "wanted", "measured")]
    for row in rows:
        steady = watch.share(row["rates"]) >= machine.STEADY
        for name, goal in row["goals"].items():
            if name == "seconds":
                what, most, found = "ms", f"<= {1e3 * goal['goal']:g}", 1e3 * goal["measured"]
            elif name in row["shares"]:
                what, most = f"% of {name}", f">= {100 * goal['goal']:g}"
                found = 100 * goal["measured"]
            else:
                what, most, found = f"x {name}", f">= {goal['goal']:.2f}", goal["measured"]
            text = f"{row['kernel'] + ' ' + row['size']:55}{what:>25}{most:>10}{found:>10.2f}"
            text += "   met" if goal["met"] else "   missed"
            lines.append(text if steady else f"{text}, {disturbed(row, watch)}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="small sizes, a minute in all")
    parser.add_argument("--only", default="", metavar="NAME", help="cases whose name holds NAME")
    parser.add_argument("--native", action="store_true", help="a column of the time spent in C")
    parser.add_argument("--threads", type=int, help="for dpkern, BLAS, numba and the read test")
    stamp = datetime.now().astimezone()
    results = Path(__file__).parent / "results" / f"{stamp:%Y-%m-%dT%H%M%S}.json"
    parser.add_argument("--json", type=Path, default=results, help="default: bench/results/<date>")
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="write it and its numbers")
    options = parser.parse_args()
    if options.page is not None and options.only:
        parser.error("--page is of all cases: leave out --only")

    warnings.simplefilter("ignore", NothingLearntWarning)
    begin = time.perf_counter()
    load = [machine.warn_of_load("start")]
    with threadpool_limits(options.threads) if options.threads else nullcontext():
        if options.threads:
            # Also what kernels.installation.info and the number of contenders go by.
            installation.usable_cores = _threads.usable_cores = lambda: options.threads
            if numba is not None:
                numba.set_num_threads(options.threads)
        one = installation.info()["n_threads"] == 1
        watch = machine.Watch(options.quick, time.process_time if one else time.perf_counter)
        about = {"date": stamp.isoformat(), "machine": machine.name(), **installation.info()}
        print(f"{about['machine']}; {about['isa']}, {about['n_threads']} threads; {watch.shown()}")
        print(head(options.native))
        rows = []
        for case in (case for suite in SUITES for case in suite(options.quick)):
            if options.only in case.name:
                if options.quick:
                    case = replace(case, goals={})
                seconds = 0.2 if options.quick else 2.0
                rows.append(run(case, seconds, watch, options.native))
                print(line(rows[-1], watch), flush=True)
    children = memory.main(options.quick) if options.only in ("", "memory") else None
    if any(row["goals"] for row in rows):
        print(goals(rows, watch))
    # The load average of the end counts this process too; `other_work` does not.
    load.append(os.getloadavg()[0])
    about |= {"load_average": load, "rates": watch.best, "seconds": time.perf_counter() - begin}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    for row in rows:
        row["disturbed"] = watch.share(row["rates"]) < machine.STEADY
    results = {"about": about, "rows": rows, "memory": children}
    options.json.write_text(json.dumps(results, indent=1))
    print(f"best rates of the run: {watch.shown()}")
    print(
        f"load average {load[0]:.2f} at the start, {load[1]:.2f} at the end (own threads "
        f"included), {about['seconds']:.0f} s"
    )
    print(f"written to {options.json}")
    if options.page is not None:
        performance_page.write_numbers(options.page, performance_page.numbers(results))
        performance_page.write(options.page)


if __name__ == "__main__":
    main()
