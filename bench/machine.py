"""The machine beside the cases: what it is, its own rates, and what else it does."""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from bench.cases import DGEMM, dgemm, out_of_cache, readers

STEADY = 0.9  # least share of the run's best rates beside a measurement that is not repeated
REPEATS = 3  # most of one case
REPEAT_SECONDS = 90.0  # for repetitions in a run, half of which a single one may take
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")

Measured = TypeVar("Measured")


def name() -> str:
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


def warn_of_load(when: str) -> float:
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"load average {load:.2f} at the {when}: figures of all threads may be off")
    return load


@dataclass
class Surroundings:
    """What the machine did beside one measurement.

    Attributes
    ----------
    rates : dict
        The lower ones of its rates before and after.
    tries : int
        Measurements that were made, of which this one had the best rates.
    other_work : float
        Cores that everything else on the machine kept busy meanwhile.
    """

    rates: dict[str, float]
    other_work: float
    tries: int = 1


@dataclass
class Watch:
    """Repeats what was measured while the machine was slower than it was before in this run.

    Attributes
    ----------
    quick : bool
        Take the rates once, in cache, and repeat nothing.
    best : dict
        The run's best rates: bytes read from memory and operations of a matrix product, a second.
    """

    quick: bool
    clock: Callable[[], float]
    best: dict[str, float] = field(default_factory=dict)
    spare: float = REPEAT_SECONDS
    latest: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        a = out_of_cache(2**22) if self.quick else out_of_cache()
        self._probes = [("read", a.nbytes, call) for call in readers(a).values()]
        self._probes.append(("dgemm", DGEMM["dgemm"], dgemm()))
        for _ in range(5):
            self.rates()
        self.latest = self.best.copy()

    def rates(self) -> dict[str, float]:
        """Take the machine's rates now, the best of a few calls."""
        found: dict[str, float] = {}
        for kind, amount, call in self._probes:
            for _ in range(4):
                begin = self.clock()
                call()
                found[kind] = max(found.get(kind, 0.0), amount / (self.clock() - begin))
        for kind, rate in found.items():
            self.best[kind] = max(self.best.get(kind, 0.0), rate)
        return found

    def shown(self) -> str:
        """The run's best rates, so far, in words."""
        return f"read {self.best['read'] / 1e9:.1f} GB/s, dgemm {self.best['dgemm'] / 1e9:.0f} GF/s"

    def share(self, rates: dict[str, float]) -> float:
        """The least share of the run's best rates, so far."""
        return min(rate / self.best[kind] for kind, rate in rates.items())

    def steadily(self, measure: Callable[[], Measured]) -> tuple[Measured, Surroundings]:
        """Measure, a few times if need be; of all tries, the one with the best rates beside it."""
        tries: list[tuple[Measured, Surroundings]] = []
        before = self.latest
        while True:
            begin, busy = time.perf_counter(), busy_seconds()
            measured = measure()
            took = time.perf_counter() - begin
            others = (busy_seconds() - busy) / took
            self.latest = before if self.quick else self.rates()
            lower = {kind: min(before[kind], self.latest[kind]) for kind in before}
            tries.append((measured, Surroundings(lower, others)))
            if len(tries) > 1:
                self.spare -= took
            steady = self.share(lower) >= STEADY
            if self.quick or steady or len(tries) > REPEATS or self.spare < 2.0 * took:
                break
            before = self.rates()
        best, around = max(tries, key=lambda one: self.share(one[1].rates))
        around.tries = len(tries)
        return best, around
