"""Records in blocks: the bits of memory, whatever the blocks are; and what is refused."""

import threading
import weakref
from itertools import pairwise

import numpy as np
import pytest
from cases import for_each
from scipy import sparse

import dpkern as dpk
from dpkern import kernels
from dpkern.data import blocks as module
from dpkern.kernels._blocks import Reduced
from dpkern.models.losses import Poisson
from dpkern.solvers import SOLVERS
from dpkern.solvers.base import recalibration

BUDGET = dpk.Budget(epsilon=2.0, delta=1e-5)
IN_BLOCKS = [name for name, solver in SOLVERS.items() if solver.declaration.in_blocks]
HOW = {"intercept": True, "row_bound": 2.0, "classes": [0, 1]}


def records(n=400, p=6, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    X = (0.6 * rng.standard_normal((n, p))).astype(dtype)
    y = (X @ rng.standard_normal(p) + rng.logistic(size=n) > 0.0).astype(int)
    return X, y, rng.integers(0, 3, n)


def cut(rng, k, *arrays):
    """The arrays in k + 1 parts, empty ones and ones of a single row among them."""
    n = len(arrays[0])
    inner = np.sort(rng.integers(0, n + 1, k - 3))
    ends = np.sort(np.concatenate([inner, [min(7, n), min(7, n), min(8, n)]]))
    ends = np.concatenate([[0], ends, [n]])
    return [tuple(array[a:b] for array in arrays) for a, b in pairwise(ends.tolist())]


def in_silos(X, y, groups, rng, k=9, **how):
    """The same records in memory, and in blocks of another order."""
    order = rng.permutation(len(y))
    memory = dpk.SiloData.from_groups(X, y, groups, **how)
    return memory, dpk.SiloData.from_blocks(cut(rng, k, X[order], y[order], groups[order]), **how)


def same(first, second):
    assert first.w.tobytes() == second.w.tobytes()
    assert first.calibration == second.calibration
    left, right = (result.privacy.to_dict() for result in (first, second))
    for certificate in (left, right):
        certificate.pop("started", None)
    # The division into silos is called by its own name.
    assert left["releases"] == right["releases"]
    assert first.privacy.declared == second.privacy.declared


@for_each(
    ("name", "neighbours", "trust"),
    [
        (name, neighbours, trust)
        for name in IN_BLOCKS
        for neighbours in SOLVERS[name].declaration.neighbours
        for trust in SOLVERS[name].declaration.trusts
        if name != "objective_perturbation"
    ],
)
def test_solvers_release_the_bits_of_memory(name, neighbours, trust):
    memory, blocks = in_silos(*records(), np.random.default_rng(1), **HOW)
    how = {"budget": BUDGET, "trust": trust, "neighbours": neighbours, "rng": 5}
    if "rounds" in SOLVERS[name].declaration.own:
        how["rounds"] = 4
    if neighbours == "add_remove":
        how["public_size"] = [130, 120, 140]
    same(dpk.solve(name, memory, **how), dpk.solve(name, blocks, **how))


def test_objective_perturbation_has_the_bits_of_memory():
    memory, blocks = in_silos(*records(200, 3), np.random.default_rng(1), **HOW)
    how = {"budget": dpk.Budget(epsilon=8.0, delta=1e-3), "l2": 0.5, "rng": 5}
    same(*(dpk.solve("objective_perturbation", data, **how) for data in (memory, blocks)))


@for_each("name", ["gradient_descent", "local_newton"])
def test_fifty_partitions_and_lock_step_have_one_result(name):
    X, y, groups = records(150)
    rng, how = np.random.default_rng(2), {"rounds": 2, "clip": 0.5}
    memory = dpk.SiloData.from_groups(X, y, groups, **HOW)
    alone = dpk.solve(name, memory, budget=BUDGET, rng=3, **how)
    budgets = [BUDGET, dpk.Budget(epsilon=1.0, delta=1e-5)]
    for i in range(50):
        order = rng.permutation(len(y))
        parts = cut(rng, int(rng.integers(4, 40)), X[order], y[order], groups[order])
        blocks = dpk.SiloData.from_blocks(parts, **HOW)
        same(alone, dpk.solve(name, blocks, budget=BUDGET, rng=3, **how))
        if i < 3:
            together = dpk.solve_many(name, blocks, budgets=budgets, rng=[3, 4], **how)
            same(alone, together[0])


@for_each("kind", ["single", "wide", "sparse", "range", "targets", "map"])
def test_every_kind_of_rows_has_the_bits_of_memory(kind, tmp_path):
    X, y, groups = records(300, 70 if kind == "wide" else 5)
    how, rng = dict(HOW), np.random.default_rng(3)
    if kind in ("single", "wide"):
        X = X.astype(np.float32)
    if kind == "range":
        how = {"feature_range": (-2.0, 2.0), "classes": [1, 0], "intercept": True}
    if kind == "targets":
        y = 3.0 + X[:, 0] + 0.3 * rng.standard_normal(len(y))
        how = {"row_bound": 2.0, "task": "regression", "target_bound": (0.0, 5.0)}
    memory = dpk.SiloData.from_groups(X, y, groups, **how)
    parts = cut(rng, 12, X, y, groups)
    if kind == "sparse":
        X[np.abs(X) < 0.5] = 0.0
        memory = dpk.SiloData.from_groups(sparse.csr_array(X), y, groups, **how)
        parts = [(sparse.csr_array(X), y, g) for X, y, g in parts]
    if kind == "map":
        np.save(tmp_path / "X.npy", X)
        parts = [(np.load(tmp_path / "X.npy", mmap_mode="r"), y, groups)]
    blocks = dpk.SiloData.from_blocks(parts, **how)
    for name in ("ridge", "local_newton"):
        how = {"budget": BUDGET, "rng": 4}
        if kind == "targets":
            how["loss"] = "squared"
        same(dpk.solve(name, memory, **how), dpk.solve(name, blocks, **how))


def test_lists_and_frames_are_blocks_too():
    pandas = pytest.importorskip("pandas")
    X, y, _ = records(60, 3)
    frame, labels = pandas.DataFrame(X, columns=["a", "b", "c"]), np.where(y, "yes", "no")
    how = {"classes": ["no", "yes"], "feature_range": dict.fromkeys("abc", (-2.0, 2.0))}
    memory = dpk.SiloData.split(frame, labels, 1, seed=0, **how)
    blocks = dpk.SiloData.from_blocks([(frame[:20], labels[:20]), (frame[20:], labels[20:])], **how)
    assert blocks.feature_names == ("a", "b", "c")
    plain = how | {"feature_range": (-2.0, 2.0)}
    lists = dpk.SiloData.from_blocks([(X.tolist(), labels.tolist())], **plain)
    found = [dpk.solve("ridge", data, budget=BUDGET, rng=1).w for data in (memory, blocks, lists)]
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
    with pytest.raises(ValueError, match=r"blocks\[1\]: X must have the columns of the first"):
        dpk.SiloData.from_blocks([(frame, labels), (frame[["b", "a", "c"]], labels)], **how)


def test_large_batches_are_cut_and_few_blocks_are_in_memory(monkeypatch):
    monkeypatch.setattr(module, "_BYTES", 8 * 6 * 10)
    X, y, groups = records(500)
    memory = dpk.SiloData.from_groups(X, y, groups, **HOW)
    blocks = dpk.SiloData.from_blocks([(X, y, groups)], **HOW)
    alive, most = 0, 0

    def forget():
        nonlocal alive
        alive -= 1

    class Watched(module.BlockRows):
        def _block(self, batch):
            nonlocal alive, most
            block = super()._block(batch)
            assert block.n <= 20
            weakref.finalize(block.y.base, forget)
            alive += 1
            most = max(most, alive)
            return block

    blocks.blocks.__class__ = Watched
    same(*(dpk.solve("ridge", data, budget=BUDGET, rng=1) for data in (memory, blocks)))
    assert most <= module._AHEAD + 3


def counted():
    """Records in blocks, and a list that has an entry for every pass over them."""
    X, y, _ = records(300)
    passes = []

    def begin():
        passes.append(1)
        return [(X, y)]

    return dpk.SiloData.from_blocks(begin, **HOW), passes


def test_lock_step_shares_its_passes():
    blocks, passes = counted()
    budgets = [dpk.Budget(mu=mu) for mu in (0.5, 1.0, 2.0)]
    dpk.solve_many("local_newton", blocks, budgets=budgets, rounds=4, recalibrate=False)
    assert len(passes) == 1 + 2 * 4


def test_a_step_of_newton_is_one_pass():
    blocks, passes = counted()
    dpk.solve("local_newton", blocks, budget=BUDGET, rng=1, rounds=5, recalibrate=False)
    assert len(passes) == 1 + 5
    dpk.solve("ridge", blocks, budget=BUDGET, rng=1)
    assert len(passes) == 1 + 5 + 1


@for_each("trust", ["central", "silo"])
@for_each("loss", ["logistic", "squared"])
def test_plans_say_the_passes_over_blocks(trust, loss):
    X, y, groups = records(1_500, 3)
    passes, budget, how = [], BUDGET, HOW
    bound = {"row_bound": 2.0, "trust": trust, "loss": loss}
    if loss == "squared":
        y, how = X[:, 0], {"row_bound": 2.0, "task": "regression", "target_bound": 1.0}
        how |= {"intercept": True}

    def begin():
        passes.append(1)
        return [(X, y, groups)]

    blocks = dpk.SiloData.from_blocks(begin, **how)
    rows = {row.solver: row for row in dpk.plan(1_500, 4, budget=budget, m=3, **bound).rows}
    for name in ("gradient_descent", "local_newton", "double_noise_newton", "ridge"):
        if name not in rows:
            continue
        passes.clear()
        dpk.solve(name, blocks, budget=budget, rng=1, trust=trust, loss=loss, clip="auto")
        assert len(passes) == rows[name].passes
    assert {name for name, row in rows.items() if row.passes} == set(rows) & set(IN_BLOCKS)


@for_each("most", [None, 0])
def test_a_recalibration_reads_margins_once(most, monkeypatch):
    if most is not None:
        monkeypatch.setattr(recalibration, "_MOST_KEPT", most)
    X, y, groups = records(800)
    passes, rng = [], np.random.default_rng(8)

    def begin():
        passes.append(1)
        order = rng.permutation(len(y))  # margins that are kept are of the order that was read
        return cut(rng, 9, X[order], y[order], groups[order])

    memory = dpk.SiloData.from_groups(X, y, groups, **HOW)
    blocks = dpk.SiloData.from_blocks(begin, **HOW)
    for k in range(1, 3):
        how = {"budget": dpk.Budget(epsilon=0.8, delta=1e-5), "rng": k}
        passes.clear()
        first, second = (dpk.solve("local_newton", data, **how) for data in (memory, blocks))
        same(first, second)
        assert isinstance(first.calibration, recalibration.Calibration)
        assert len(passes) == 10 + (1 if most is None else 5)
    assert blocks.blocks._kept is None


def test_margins_of_another_model_are_not_those_kept():
    memory, blocks = in_silos(*records(), np.random.default_rng(6), **HOW)
    requests = {}
    for k in range(3):
        margins = recalibration.Margins(np.linspace(-1.0, 1.0 + k, memory.d), None)
        requests[k] = Reduced(margins, lambda block, of=margins: np.array([np.sum(of(block) > 0)]))
    for k in (0, 0, 1, 0, 2, 2):
        (found,) = blocks.blocks.totals([requests[k]])
        assert found == requests[k](memory)
        assert blocks.blocks._kept[0] == requests[k].by.key


# --------------------------------------------------------------------------- weights, offsets


def in_mappings(X, y, groups, rng, k=12, **how):
    """Weighted records in memory, and in blocks of another order."""
    weight, offset = rng.random(len(y)) * 3.0, rng.normal(size=len(y))
    how = how | {"max_weight": 2.5}
    memory = dpk.SiloData.from_groups(X, y, groups, weight=weight, margin_offset=offset, **how)
    order = rng.permutation(len(y))
    names = "X", "y", "groups", "weight", "margin_offset"
    arrays = [values[order] for values in (X, y, groups, weight, offset)]
    parts = [dict(zip(names, part, strict=True)) for part in cut(rng, k, *arrays)]
    return memory, dpk.SiloData.from_blocks(parts, **how), parts, how


@for_each(
    ("name", "trust"),
    [
        (name, trust)
        for name in IN_BLOCKS
        for trust in ("central", "silo")
        if SOLVERS[name].declaration.weights and trust in SOLVERS[name].declaration.trusts
    ],
)
def test_weighted_blocks_have_the_bits_of_memory(name, trust, monkeypatch):
    declaration = SOLVERS[name].declaration
    monkeypatch.setattr(module, "_BYTES", 8 * 6 * 10)  # so that blocks are cut too
    memory, blocks, _, _ = in_mappings(*records(200, 5), np.random.default_rng(1), **HOW)
    assert blocks.is_weighted
    how = {"budget": BUDGET, "trust": trust, "rng": 5}
    if name == "objective_perturbation":
        how |= {"budget": dpk.Budget(epsilon=8.0, delta=1e-3), "l2": 0.5}
    if "rounds" in declaration.own:
        how["rounds"] = 4
    same(dpk.solve(name, memory, **how), dpk.solve(name, blocks, **how))


@for_each("bound", [6.0, (0.0, 6.0)])
def test_counts_with_exposures_have_the_bits_of_memory(bound):
    X, _, groups = records(300, 4)
    y = np.random.default_rng(3).poisson(np.exp(0.3 + 0.5 * X[:, 0]).clip(0, 6)).astype(float)
    how = {"row_bound": 2.0, "task": "regression", "target_bound": bound, "intercept": True}
    memory, blocks, _, _ = in_mappings(X, y, groups, np.random.default_rng(1), **how)
    loss = Poisson(-3.0, 2.0, 6.0)
    for name in ("local_newton", "gradient_descent", "newton_inference"):
        run = {"budget": BUDGET, "rng": 5, "loss": loss, "rounds": 4}
        same(dpk.solve(name, memory, **run), dpk.solve(name, blocks, **run))


def test_wrong_weights_of_blocks_are_named():
    _, blocks, parts, how = in_mappings(*records(60), np.random.default_rng(1), **HOW)
    k = max(range(len(parts)), key=lambda i: len(parts[i]["y"]))
    for change, error, message in (
        (lambda part: part.pop("weight"), ValueError, "blocks must have weight in all"),
        (lambda part: part.update(weight=-part["weight"]), ValueError, "weight must be at least 0"),
        (lambda part: part.update(weight=part["weight"][1:]), ValueError, "weight must have shape"),
        (
            lambda part: part.update(margin_offset=part["margin_offset"] * np.inf),
            ValueError,
            "margin_offset must be finite",
        ),
        (lambda part: part.update(persons=part["y"]), TypeError, "must be .X, y. or"),
    ):
        wrong = [dict(part) for part in parts]
        change(wrong[k])
        with pytest.raises(error, match=rf"blocks\[{k}\].*{message}"):
            dpk.SiloData.from_blocks(wrong, **how)
    with pytest.raises(ValueError, match="max_weight must be given with weight"):
        dpk.SiloData.from_blocks(parts, **HOW)
    plain = [(part["X"], part["y"]) for part in parts]
    with pytest.raises(ValueError, match="max_weight must be left out without weight"):
        dpk.SiloData.from_blocks(plain, **how)
    with pytest.raises(ValueError, match="weight must be None for records in blocks, which have"):
        dpk.SiloData.from_blocks(plain, weight=np.ones(60), **how)
    with pytest.raises(ValueError, match="data must have neither weight nor margin_offset"):
        dpk.solve("objective_perturbation", blocks, budget=BUDGET)


# --------------------------------------------------------------------------- the sums


def sums_of(data, **how):
    w = np.linspace(-1.0, 1.0, data.d)
    yield kernels.glm_gradient(data, w, clip=0.7, **how)
    yield kernels.glm_gradients(data, np.array([w, -w, 0.0 * w]), clip=[0.7, 0.1, 2.0], **how)
    yield kernels.line_search(
        data, w, w[::-1].copy(), loss="logistic", steps=[1.0, 0.5], bound=[2.0, 1.0], **how
    )


def test_sums_of_kernels_are_those_of_memory():
    memory, blocks = in_silos(*records(900), np.random.default_rng(6), 4, **HOW)
    # On the last grid blocks are divided, and sums of several saturate.
    for how in (
        {},
        {"grid": 2.0**-30},
        {"grid": 2.0**-20, "saturate": True},
        {"grid": 2.0**-46, "saturate": True},
    ):
        pairs = zip(sums_of(memory, **how), sums_of(blocks, **how), strict=True)
        assert all(first.tobytes() == second.tobytes() for first, second in pairs)


def test_a_block_whose_sum_is_no_double_is_divided():
    rng = np.random.default_rng(0)
    X, y = 1.0 + 0.01 * rng.random((700, 8)), np.repeat([1, 0], [400, 300])
    memory = dpk.SiloData(X, y, [0, 700], classes=[0, 1])
    blocks = dpk.SiloData.from_blocks([(X[:400], y[:400]), (X[400:], y[400:])], classes=[0, 1])
    # The first block's sum has more than 2^53 steps, and that of both less than 2^52.
    how = {"clip": 3.0, "grid": 2.0**-46, "saturate": True}
    found = [kernels.glm_gradient(data, np.zeros(8), **how) for data in (memory, blocks)]
    assert np.abs(found[0]).max() < 2.0**6
    assert found[0].tobytes() == found[1].tobytes()


@for_each("most", [None, 20])  # so that blocks of more records are divided
@for_each("grid", [None, 2.0**-12, 2.0**-3])
def test_hessians_are_rounded_once(grid, most):
    memory, blocks = in_silos(*records(), np.random.default_rng(6), **HOW)
    w = np.linspace(-1.0, 1.0, memory.d)
    how = {"loss": "logistic", "hess_clip": 1.0, "grid": grid, "records": most}
    for curvature in ("hessian", "upper_bound"):
        found = [
            kernels.glm_hessian(data, w, curvature=curvature, **how) for data in (memory, blocks)
        ]
        assert found[0].tobytes() == found[1].tobytes()
    found = [kernels.glm_hessians(data, np.array([w, -w]), **how) for data in (memory, blocks)]
    assert found[0].tobytes() == found[1].tobytes()


def test_sums_without_a_grid_are_near():
    memory, blocks = in_silos(*records(), np.random.default_rng(6), **HOW)
    w = np.linspace(-1.0, 1.0, memory.d)
    for kernel, how in (
        (kernels.glm_losses, {"loss": "logistic"}),
        (kernels.glm_gradient, {"clip": np.inf}),
        (kernels.glm_hessian, {"loss": "logistic", "hess_clip": np.inf}),
    ):
        first, second = (kernel(data, w, **how) for data in (memory, blocks))
        np.testing.assert_allclose(first, second, rtol=1e-12)
    first, second = (
        dpk.solve("local_newton", data, budget=None, rng=1) for data in (memory, blocks)
    )
    np.testing.assert_allclose(first.w, second.w, rtol=1e-9)


# --------------------------------------------------------------------------- other releases


def dumped(evaluation):
    left = evaluation.privacy.to_dict()
    for name in ("started", "digest", "notes", "sources"):
        left.pop(name, None)
    curves = (evaluation.calibration_curve, evaluation.roc_curve, evaluation.confusion)
    return repr((evaluation.scores, curves)), left


@for_each("neighbours", ["replace_one", "add_remove"])
@for_each("kind", ["labels", "targets", "single"])
def test_evaluations_have_the_bits_of_memory(kind, neighbours):
    X, y, groups = records(500)
    rng, how = np.random.default_rng(4), dict(HOW)
    if kind == "labels":
        y, how["classes"] = np.where(y == 1, "no", "yes"), ["yes", "no"]
    if kind == "targets":
        y = 3.0 + X[:, 0] + 0.3 * rng.standard_normal(len(y))
        how = {"row_bound": 2.0, "task": "regression", "target_bound": (0.0, 5.0)}
    if kind == "single":
        X = X.astype(np.float32)
    memory, blocks = in_silos(X, y, groups, rng, 20, **how)
    model = dpk.solve("ridge" if kind == "targets" else "local_newton", memory, budget=BUDGET)
    more = {"neighbours": neighbours, "rng": 3, "budget": BUDGET}
    if neighbours == "add_remove":
        more["public_size"] = 480
    wanted = dumped(dpk.evaluate(model, X, y, **more))
    for data in (memory, blocks):
        assert dumped(dpk.evaluate(model, data, **more)) == wanted


@for_each("kind", ["dense", "sparse", "targets"])
def test_ranges_have_the_bits_of_memory(kind):
    X, y, groups = records(500)
    rng, how, more = np.random.default_rng(4), {"classes": [0, 1]}, {}
    if kind == "targets":
        y = 3.0 + X[:, 0]
        how, more = {"task": "regression"}, {"target_bounds": (-100.0, 100.0)}
    if kind == "sparse":
        X[np.abs(X) < 0.5] = 0.0
    memory, blocks = in_silos(X, y, groups, rng, 20, **how)
    if kind == "sparse":
        parts = [(sparse.csr_array(rows), *rest) for rows, *rest in cut(rng, 9, X, y, groups)]
        memory = dpk.SiloData.from_groups(sparse.csr_array(X), y, groups, **how)
        blocks = dpk.SiloData.from_blocks(parts, **how)
    found = [
        dpk.private_range(data, bounds=(-1e4, 1e4), budget=BUDGET, rng=2, **more)
        for data in (memory, blocks)
    ]
    assert repr(found[0]) == repr(found[1])
    first, second = (each.feature_range for each in found)
    assert np.array(first).tobytes() == np.array(second).tobytes()
    assert found[0].privacy.releases == found[1].privacy.releases


def test_other_releases_refuse_uncharged(tmp_path):
    X, y, _ = records(60)
    passes = []

    def begin():
        passes.append(1)
        return [(X, y)] if len(passes) == 1 else [(X[1:], y[1:])]

    blocks = dpk.SiloData.from_blocks(begin, **HOW)
    model = dpk.solve("ridge", dpk.SiloData(X, y, [0, 60], **HOW), budget=BUDGET)
    accountant = dpk.Accountant(tmp_path / "book.json", epsilon=9.0, delta=1e-4)
    more = {"budget": BUDGET, "accountant": accountant}
    schema = dpk.Schema([dpk.data.Column("a", "number", lo=0, hi=1)])
    weighted = dpk.SiloData(X, y, [0, 60], weight=np.ones(60), max_weight=1.0, **HOW)
    for call, error, message in (
        (lambda: dpk.evaluate(model, blocks, **more), ValueError, "same 60 records in every pass"),
        (lambda: dpk.evaluate(model, blocks, y, **more), ValueError, "y must be None beside"),
        (lambda: dpk.evaluate(model, X, **more), ValueError, "y must be given"),
        (lambda: dpk.evaluate(model, weighted, **more), ValueError, "X must have neither weight"),
        (
            lambda: dpk.private_range(blocks, bounds=(-9.0, 9.0), **more),
            ValueError,
            "same records in every pass",
        ),
        (
            lambda: dpk.private_range(blocks, bounds=(-9.0, 9.0), target_bounds=(0.0, 1.0), **more),
            ValueError,
            "target_bounds must be None",
        ),
        (lambda: dpk.describe(blocks, schema, **more), TypeError, "data must be a table, or what"),
        (lambda: dpk.describe(weighted, schema, **more), TypeError, "data must be a table, or"),
    ):
        with pytest.raises(error, match=message):
            call()
    assert not accountant.entries


# --------------------------------------------------------------------------- what is refused


@for_each("name", [name for name in SOLVERS if name not in IN_BLOCKS])
def test_what_reads_single_records_is_refused_uncharged(name, tmp_path):
    X, y, _ = records(60)
    blocks = dpk.SiloData.from_blocks([(X, y)], **HOW)
    accountant = dpk.Accountant(tmp_path / "book.json", epsilon=9.0, delta=1e-4)
    trust = SOLVERS[name].declaration.trusts[0]
    with pytest.raises(ValueError, match=r"in memory in .* take gradient_descent"):
        dpk.solve(name, blocks, budget=BUDGET, accountant=accountant, trust=trust)
    assert not accountant.entries


def test_local_steps_and_monitors_are_refused_uncharged(tmp_path):
    X, y, _ = records(60)
    blocks = dpk.SiloData.from_blocks([(X, y)], **HOW)
    accountant = dpk.Accountant(tmp_path / "book.json", epsilon=9.0, delta=1e-4)
    for how, message in (
        ({"local_steps": 2}, "local_steps must be 1"),
        ({"accounting": "last_iterate", "trust": "silo"}, "accounting 'composition'"),
        ({"monitor": "train"}, "monitor must be None or public records"),
        ({"monitor": blocks}, "monitor must hold records in memory"),
    ):
        with pytest.raises(ValueError, match=message):
            dpk.solve("federated_gd", blocks, budget=BUDGET, accountant=accountant, **how)
    assert not accountant.entries


def test_models_that_are_not_linear_are_refused_uncharged(tmp_path):
    X, y, _ = records(60)
    several = HOW | {"task": "multiclass", "classes": [0, 1, 2], "intercept": False}
    blocks = dpk.SiloData.from_blocks([(X, y)], **several)
    accountant = dpk.Accountant(tmp_path / "book.json", epsilon=9.0, delta=1e-4)
    for name in ("auto", "minibatch_sgd"):
        with pytest.raises(ValueError, match=r"for a model that is not linear \(MLP\)"):
            dpk.solve(name, blocks, budget=BUDGET, accountant=accountant, model=dpk.MLP(hidden=()))
    assert not accountant.entries


def test_auto_takes_what_works():
    X, y, _ = records(300)
    targets = {"task": "regression", "target_bound": 3.0, "row_bound": 2.0}
    classes = dpk.SiloData.from_blocks([(X, y)], **HOW)
    numbers = dpk.SiloData.from_blocks([(X, X[:, 0])], **targets)
    assert dpk.solve("auto", classes, budget=BUDGET, rng=1).solver in IN_BLOCKS
    assert dpk.solve("auto", numbers, budget=BUDGET, rng=1).solver in IN_BLOCKS


def test_arrays_of_blocks_say_what_they_are():
    X, y, _ = records(60)
    blocks = dpk.SiloData.from_blocks([(X, y)], **HOW)
    assert (blocks.X.shape, blocks.y.shape) == (X.shape, y.shape)
    for call in (
        lambda: np.asarray(blocks.X),
        lambda: blocks.y[3],
        lambda: kernels.glm_margins(blocks, np.zeros(7)),
        lambda: kernels.glm_norms(blocks),
        lambda: blocks.each_alone(np.arange(2)),
        lambda: dpk.select([{"l2": 0.1}], blocks, solver="ridge", budget=BUDGET),
        lambda: kernels.glm_difference(blocks, np.ones(7), np.zeros(7), loss="logistic", clip=1.0),
    ):
        with pytest.raises(TypeError, match="data must be in memory"):
            call()
    with pytest.raises(AttributeError, match="data must be in memory"):
        blocks.X.copy()
    with pytest.raises(TypeError, match="in memory to be copied to a card"):
        blocks.to_device()
    with pytest.raises(ValueError, match="rows must be None for records in blocks"):
        kernels.glm_gradient(blocks, np.zeros(7), clip=1.0, rows=(np.arange(2), np.array([0, 2])))


@for_each(
    ("change", "error", "message"),
    [
        (lambda X, y: (X[:, :5], y), ValueError, r"blocks\[1\]: X must have 6 columns"),
        (
            lambda X, y: (X.astype(np.float32), y),
            TypeError,
            r"blocks\[1\]: X must be dense float64",
        ),
        (lambda X, y: (sparse.csr_array(X), y), TypeError, r"blocks\[1\]: X must be dense"),
        (lambda X, y: (X * np.nan, y), ValueError, r"blocks\[1\]: X must be finite"),
        (lambda X, y: (X, y + 1), ValueError, r"blocks\[1\]: y must hold labels of classes only"),
        (lambda X, y: (X, y[1:]), ValueError, r"blocks\[1\] must have as many labels as rows"),
        (lambda X, y: (X, y, y), ValueError, r"blocks\[1\]: blocks must have silos in all"),
        (lambda X, y: X, TypeError, r"blocks\[1\] must be \(X, y\)"),
    ],
)
def test_a_wrong_block_is_named(change, error, message):
    X, y, _ = records(60)
    with pytest.raises(error, match=message):
        dpk.SiloData.from_blocks([(X, y), change(X, y)], **HOW)


def test_wrong_arguments_of_blocks_are_refused():
    X, y, _ = records(60)
    for given, how, error, message in (
        (iter([(X, y)]), HOW, TypeError, "iterable anew in every pass"),
        (None, HOW, TypeError, "blocks must be a sequence of"),
        ([(X, y)], {"row_bound": 2.0}, ValueError, "classes must be the public labels"),
        ([(X, y)], HOW | {"person": y}, ValueError, "person must be None for records in blocks"),
        ([(X[:0], y[:0])], HOW, ValueError, "blocks must hold records, got none"),
        ([(X, y)], HOW | {"clipping": 1}, TypeError, "clipping"),
    ):
        with pytest.raises(error, match=message):
            dpk.SiloData.from_blocks(given, **how)


def test_other_records_in_a_later_pass_end_the_run():
    X, y, _ = records(100)
    passes = []

    def begin():
        passes.append(len(passes))
        return [(X, y), (X, y)][: 1 if len(passes) == 3 else 2]

    blocks = dpk.SiloData.from_blocks(begin, **HOW)
    message = "same records in every pass, got 100 after 200 in the first"
    with pytest.warns(UserWarning, match=message):
        result = dpk.solve("gradient_descent", blocks, budget=BUDGET, rng=1, rounds=4, clip=1.0)
    assert result.n_rounds == 1


def test_an_error_of_a_pass_leaves_no_thread():
    X, y, _ = records(100)
    before = threading.active_count()
    for k in range(3):
        parts = [(X, y)] * (k + 1) + [(X[:, :2], y)] + [(X, y)] * 9
        with pytest.raises(ValueError, match="6 columns"):
            dpk.SiloData.from_blocks(parts, **HOW)
    assert threading.active_count() == before
