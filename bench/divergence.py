"""Whether noisy Newton steps diverge: final objectives of many draws on sets that differ much.

    python -m bench.divergence [--sets A,B] [--mus M,N] [--draws N]

`double_noise_newton` with its defaults, and no penalty, under central trust. Every line is one set,
variant and mu: how many draws ended above the objective of w = 0, how many said in their message
that gradients grew, and the median and the largest gap to the minimum, beside the gap of w = 0. The
sets come from the folder in the environment variable DPKERN_DATA.
"""

import argparse
import statistics
import warnings

import numpy as np

from bench.utility_sets import SETS, problem
from dpkern import Budget, solve_many

VARIANTS = "add", "clip"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default=",".join(name for name in SETS if name != "mnist"))
    parser.add_argument("--mus", default="0.1,0.3,1,3,10")
    parser.add_argument("--draws", type=int, default=1000)
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # of scale, and of models that learnt nothing
    print("| set | variant | mu | draws | above w = 0 | said | median gap | largest | of w = 0 |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in args.sets.split(","):
        at = problem(name)
        objective = at.objective()
        zero = objective.value(np.zeros(objective.dim)) - at.optimum
        for variant in VARIANTS:
            for mu in map(float, args.mus.split(",")):
                many = solve_many(
                    "double_noise_newton",
                    at.data,
                    budgets=[Budget(mu=mu)],
                    draws=args.draws,
                    rng=0,
                    trust="central",
                    variant=variant,
                )
                gaps = [objective.value(run.w) - at.optimum for run in many.results]
                above = sum(not gap <= zero for gap in gaps)
                said = sum("grew" in run.message for run in many.results)
                median, largest = statistics.median(gaps), max(gaps)
                row = name, variant, f"{mu:g}", args.draws, above, said
                figures = (f"{value:.2g}" for value in (median, largest, zero))
                print("| " + " | ".join(map(str, (*row, *figures))) + " |", flush=True)


if __name__ == "__main__":
    main()
