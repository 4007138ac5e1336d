"""The numbers docs/figures/performance.json, and the page docs/performance.md and its picture.

python -m bench.report --page docs/performance.md      measure, and write all three
python -m bench.performance_page                       page and picture from the numbers alone
"""

import io
import json
from pathlib import Path
from typing import Any

from bench.utility_text import table, wrapped
from dpkern._files import replacing

Row = dict[str, Any]

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"

# What is not dpkern itself, or is the same work in another order.
_OTHERS = {"numpy", "numba", "scipy", "torch", "twin", "loop", "in turn", "one by one"}

_FIRST = """\
The clipped, exactly summed gradient of {size} takes 1/{numpy:.1f} of the time of NumPy's two BLAS
passes (`X @ w`, weights, `X.T @ c`, with the row norms known from the start), and reads at
{read:.0f} % of the rate of a plain sum over the same array.
"""
_USE = """\
- Leave X as it is stored. float64, float32, CSR and memory maps are read without a copy; float32
  rows out of cache take 1/{float64:.1f} of the time of doubles, sparse rows 1/{dense:.1f} of that
  of the same rows made dense. Data in the order of their silos are not copied either; `split`,
  `from_groups` and `from_silos` copy X once.
- Make runs together: `solve_many` computes the gradients of all draws, budgets and settings in one
  pass over the records, and takes 1/{in_turn:.1f} of the time of the runs in turn.
- Leave rounds to the kernels. Without a callback or a monitor a round on some hundred records takes
  a few microseconds, with one ten times as long, as every round passes through Python.
- Count on {full_batch:.1f} times the speed, not more, where a minibatch takes a third of the
  records: its rows are no neighbours in memory.
- Compile a loss of your own (`numba.cfunc`): the built-in loss takes {built_in:.2f} of its time.
- Set `OMP_NUM_THREADS` where other work needs cores. Results do not depend on threads.
- A fit holds X as it was given and some 16 bytes a row: {fit}. Importing dpkern takes
  {import_seconds:.2f} s after NumPy and SciPy.
- What fixes noise and sensitivities, on public numbers, takes less than 0.2 s of a run, but for a
  thousand rounds of ten local steps each of a size of its own on batches in turn (0.2 ms a round),
  and a hundred silos of different sizes with `accounting="last_iterate"` (2 ms a round).
  `python -m bench.calibration` times it for every solver.
"""
_BOUNDS = """\
Out of cache, sums over dense rows are bound by memory: cache lines are asked for ahead of their
use, in the order of memory, whatever rows and columns are at work. In cache the loss, the clip and
the sum over a vector's lanes come once a row, so that 10 columns run at a fraction of the rate of
1 000. Several models, Hessians and perceptrons are bound by arithmetic, sparse rows by gathers and
scatters, noise by ChaCha20, a prox by copying. The exact sum takes one addition a number more than
a floating-point one, which out of cache is free.
"""
_HOW = """\
Medians of single calls, in interleaved turns, on {machine} ({isa}, {n_threads} threads). *Rate*
counts what a kernel has to read, multiply (F) or draw. *Limit* is its share of the rate at which
this machine reads the same array, multiplies matrices (dgemm), copies, or draws words of ChaCha20;
of whole runs, of reading X from memory at every step. It passes 100 % where rows stay in cache
between steps, and where half of a symmetric matrix is not computed. The last column is the time of
another implementation, which computes the same, divided by dpkern's: above 1, dpkern is faster.
*numba* is one fused parallel pass with `fastmath`, *twin* the NumPy reference of the tests, *loop*
a loop over records in Python, *per record* and *ghost* two ways to clip a network's gradients in
NumPy. The others are dpkern itself: on one thread, on dense rows, without noise (*silent*), with
the built-in loss, run after run (*in turn*, *one by one*), on full batches.
"""
_COMMANDS = """\
`python -m bench.report` measures this in some ten minutes (`--quick`: small sizes, a minute;
`--only gaussian`, `--threads 1`, `--native` for the time spent in C), and marks what the machine
disturbed; `--page docs/performance.md` writes this page. `python -m pytest bench/ -k glm` runs
pytest-benchmark on small sizes. All sizes, with their spread, are in
[one file](figures/{stem}.json). Rates move with the machine: compare them in one run only.
"""


def numbers(results: dict[str, Any]) -> dict[str, Any]:
    """What the page is made of, from the results of bench.report."""
    about = {name: results["about"][name] for name in ("date", "machine", "isa", "n_threads")}
    rows = []
    for row in results["rows"]:
        low, high = row["quartiles"]["dpkern"]
        seconds = row["seconds"]["dpkern"]
        case = {"kernel": row["kernel"], "size": row["size"], "seconds": _short(seconds)}
        case |= {"spread": round((high - low) / seconds, 2), "rate": _short(row["rate"])}
        case["unit"] = row["unit"]
        for name in ("shares", "ratios"):
            case[name] = {key: round(value, 2) for key, value in row[name].items()}
        rows.append(case)
    memory = results["memory"] or {"fits": [], "import_seconds": 0.0}
    fits = [
        {"solver": fit["solver"], "data": fit["data"], "input": _mib(fit["X"] + fit["y"])}
        | {name: _mib(fit[name]) for name in ("peak", "anonymous", "allowed")}
        for fit in memory["fits"]
    ]
    seconds = round(memory["import_seconds"], 3)
    return {"about": about, "rows": rows, "fits": fits, "import_seconds": seconds}


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _mib(size: float) -> float:
    return round(size / 2**20, 1)


def numbers_file(page: Path) -> Path:
    """The file of numbers that a page is made of."""
    return page.parent / "figures" / f"{page.stem}.json"


def write_numbers(page: Path, values: dict[str, Any]) -> None:
    """Write the file of numbers, a case a line."""
    path = numbers_file(page)
    path.parent.mkdir(exist_ok=True)
    lists = [
        f'"{name}": [\n' + ",\n".join(json.dumps(row) for row in values[name]) + "\n]"
        for name in ("rows", "fits")
    ]
    rest = [f'"{name}": {json.dumps(values[name])}' for name in ("about", "import_seconds")]
    path.write_text("{\n" + ",\n".join([*rest, *lists]) + "\n}\n")


def rate_of(row: Row) -> str:
    """A rate, or the time of one where they are few."""
    if row["unit"] == "B" or row["rate"] >= 1e7:
        unit = {"B": "GB/s", "F": "GF/s"}.get(row["unit"], f"G{row['unit']}/s")
        return f"{row['rate'] / 1e9:.2f} {unit}"
    each = 1.0 / row["rate"]
    prefix, scale = ("m", 1e3) if each > 0.01 else ("u", 1e6)
    return f"{scale * each:.2f} {prefix}s/{row['unit']}"


def text(page: Path) -> str:
    """The page that its file of numbers says."""
    measured = json.loads(numbers_file(page).read_text())
    rows = measured["rows"]
    first = _with(rows, "glm_gradient", "numpy")
    values = {
        name: _with(rows, kernel, ratio)["ratios"][ratio]
        for name, kernel, ratio in (
            ("float64", "glm_gradient", "float64"),
            ("dense", "csr gradient", "dense"),
            ("in_turn", "solve_many", "in turn"),
            ("full_batch", "minibatch_sgd", "full batch"),
            ("built_in", "custom loss", "built in"),
        )
    }
    fit = "; ".join(
        f"`{row['solver']}` on a memory map of {row['input']:.0f} MiB keeps "
        f"{row['anonymous']:.0f} MiB of its own"
        for row in measured["fits"]
        if row["data"] == "memory map"
    )
    use = _USE.format(**values, fit=fit, import_seconds=measured["import_seconds"])
    share = 100.0 * first["shares"]["read"]
    parts = [
        "# Performance\n",
        wrapped(_FIRST.format(size=first["size"], numpy=first["ratios"]["numpy"], read=share)),
        f"![times as fast as NumPy](figures/{page.stem}.png)\n",
        "## What to do with it\n",
        "".join(wrapped(item.removeprefix("- "), "- ") for item in use.split("\n- ")),
        "## What was measured\n",
        wrapped(_HOW.format(**measured["about"])),
        "Of every kernel the case that takes longest, beside another implementation:\n",
        _main_table(rows),
        wrapped(_BOUNDS),
        wrapped(_COMMANDS.format(stem=page.stem)),
    ]
    return "\n".join(parts)


def _with(rows: list[Row], kernel: str, ratio: str) -> Row:
    """The case of a kernel that takes longest, of those with this ratio."""
    cases = [row for row in rows if row["kernel"] == kernel and ratio in row["ratios"]]
    return max(cases, key=lambda row: row["seconds"])


def _longest(rows: list[Row]) -> list[Row]:
    """Of every kernel the case that takes longest."""
    best: dict[str, Row] = {}
    for row in rows:
        if row["kernel"] not in best or row["seconds"] > best[row["kernel"]]["seconds"]:
            best[row["kernel"]] = row
    return list(best.values())


def _main_table(rows: list[Row]) -> str:
    body = []
    for row in _longest([row for row in rows if _OTHERS & row["ratios"].keys()]):
        shares = [f"{100.0 * share:.0f} % of {name}" for name, share in row["shares"].items()]
        ratios = [f"{name} {ratio:.2f}" for name, ratio in row["ratios"].items()]
        time = f"{1e3 * row['seconds']:.4g}"
        cells = [row["kernel"], row["size"], time, rate_of(row), ", ".join(shares)]
        body.append([*cells, ", ".join(ratios)])
    return table(["case", "size", "ms", "rate", "limit", "other's time / dpkern's"], body)


def write(page: Path) -> None:
    """Write the page and its picture from the file of numbers."""
    with replacing(page) as file:
        file.write(text(page).encode())
    with replacing(numbers_file(page).with_suffix(".png")) as file:
        file.write(_draw(json.loads(numbers_file(page).read_text())["rows"]))


def _draw(rows: list[Row]) -> bytes:
    """A bar for the longest case of every kernel that was set beside NumPy."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = _longest([row for row in rows if "numpy" in row["ratios"]])[::-1]
    figure = Figure(figsize=(8.0, 0.8 + 0.28 * len(shown)), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    bars = axes.barh(
        [f"{row['kernel']}, {row['size']}" for row in shown],
        [row["ratios"]["numpy"] - 1.0 for row in shown],
        left=1.0,
        color="#0072B2",
    )
    said = [f"{row['ratios']['numpy']:.1f}" for row in shown]
    axes.bar_label(bars, said, padding=3, fontsize=8)
    axes.axvline(1.0, color="#444444", linewidth=1.1, linestyle=(0, (6, 3)))
    axes.set_xscale("log")
    axes.set_xticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    axes.minorticks_off()
    axes.set_xlabel("times as fast as NumPy (log scale)", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


if __name__ == "__main__":
    write(PAGE)
