"""Every address that enters C is aligned: C leaves undefined what a misaligned load does."""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest
from cases import for_each
from makers import assert_refused, misaligned
from scipy.sparse import csr_array

from dpkern import SiloData, _core, kernels

M, N, P = 2, 8, 3
RNG = np.random.default_rng(0)
KEY = bytes(range(32))
# Small arrays that the wrappers copy to where kernels read them best.
COPIED = {"w", "w_new", "w_old", "p", "silos"}
# With rows of a minibatch, theirs are read instead.
UNREAD = {
    (name, "offsets")
    for name in ("glm_gradient", "glm_gradients", "mlp_gradient", "ordinal_gradient")
}
NO_ARRAYS = {"isa_names", "isa", "loss_names", "prox_names", "smooth_names", "vmath_names"} | {
    "smooth_factor",
    "flushes_denormals",
    "_use_isa",
    "gpu_source",
    "chacha20_block",
    "chacha20_keys",  # bytes
}


def records(sparse=False, weighted=True):
    """What _core reads of a SiloData; here any attribute can be replaced."""
    X = RNG.standard_normal((N, P))
    attributes = {
        "y": np.where(np.arange(N) % 2, 1.0, -1.0),
        "scale": np.full(P, 0.5),
        "shift": None if sparse else np.full(P, 0.1),
        "row_norms": np.full(N, 4.0),
        "record_weight": np.full(N, 0.5) if weighted else None,
        "margin_offset": np.full(N, 0.1) if weighted else None,
        "offsets": np.array([0, 3, N]),
    }
    if sparse:
        stored = csr_array(X)
        X = SimpleNamespace(
            data=stored.data, indices=stored.indices, indptr=stored.indptr, shape=X.shape
        )
    return SimpleNamespace(X=X, **attributes, d=P, intercept=False, row_bound=np.inf)


def loss():
    return _core.Loss(_core.loss_names().index("logistic"), np.zeros(1))


def calls():
    """Valid arguments of every function of _core that takes arrays."""
    w, rows = np.full((1, P), 0.1), (np.arange(4), np.array([0, 2, 4]))
    grid, weight, sums = np.full(M, 2.0**-20), np.ones(M), np.zeros((M, P))
    ones, square = np.ones(N), np.zeros((M, P, P))
    law = (np.array([2**62, 2**63], np.uint64), np.zeros(4, np.uint64), np.zeros(1024, np.int64))
    line = np.full((M, 2), 0.5)
    words = np.zeros((2, 2), np.uint64)
    network = (np.ones((1, 1, P + 1)), np.array([P, 1], np.intp))
    plain = records(weighted=False)
    layers = (plain, *network, 0, loss(), 1.0, np.inf, 2.0**-20)
    descent = (1.0, grid, np.array([0.5]), P, 0.1, 0.0, -1, 0.0, 0, 0.1, np.zeros(1))
    noise = (KEY, 1, np.ones(M), None, 0, np.arange(M))
    G, V = RNG.standard_normal((N, P)), RNG.standard_normal((N, P))
    models = loss(), np.ones(M), np.full((M, M), 2.0**-20)
    steps = np.full((M, 2), 0.1), np.full(M, 0.1), P, 0, np.full((M, 2), 0.1)
    rounds = steps[0], np.full(M, 0.5), sums + 0.2, *steps[1:]
    H, g = square + np.eye(P), sums + 1.0
    differences = (loss(), 1.0, 0.5, 0.25, grid, weight, None, ones, 2 * ones)
    return {
        "clip_and_sum": (G, np.array([0, 3, N]), 1.0, grid, sums, 1),
        "task_rows": (records(),),
        "glm_norms": (records(), np.zeros(N), 1),
        "glm_margins": (records(), w, np.zeros(N), 1),
        "glm_products": (records(), w, np.zeros(N), 1),
        "glm_losses": (records(), w, loss(), np.zeros(M), 1),
        "glm_gradient": (records(), w, loss(), 1.0, grid, weight, rows, sums, 1),
        "glm_gradients": (records(), np.full((M, P), 0.1), *models, weight, rows, square, 1),
        "ordinal_gradient": (
            *(records(), np.full((1, P + 2), 0.1), 2.0, loss(), 1.0, grid, weight, rows),
            *(np.zeros((M, P + 2)), 1),
        ),
        "glm_person_gradient": (
            *(records(), w, loss(), 1.0, grid, weight, np.array([0, 1, 3, 5, N])),
            *(np.array([0, 2, 4]), 1.0, 1, sums, 1),
        ),
        "glm_difference": (records(), w, 2 * w, *differences, sums, 1),
        "glm_hessian": (records(), w, loss(), 1.0, 2.0**-20, grid, weight, N, square, 1),
        "glm_hessians": (
            records(sparse=True),
            np.full((M, P), 0.1),
            loss(),
            np.ones(M),
            np.full(M, 2.0**-20),
            np.full((M, M), 2.0**-20),
            weight,
            N,
            np.zeros((M, M, P, P)),
            1,
        ),
        "local_descent": (records(), w, loss(), *descent, *noise, sums, 1),
        "glm_descent": (
            *(records(), sums + 0.1, *models, weight, 0.1, *rounds, np.zeros(1), []),
            *(1, np.ones(M), 4, np.ones(M, np.int64), np.ones(M, np.uint64), True),
            *(np.zeros((M, 2, P)), 1, 1, 1),
        ),
        "loss_prox": (
            plain,
            V,
            0.5,
            loss(),
            1.0,
            np.zeros((N, P)),
            np.zeros(N),
            1,
        ),
        "line_search": (records(), w, w, loss(), np.ones(2), line, line / 2**20, line, 1),
        "mlp_gradient": (*layers, grid, weight, rows, np.zeros((M, P + 1)), 1),
        "newton_direction": (H, g, 0.5, _core.Lapack(), sums, 1),
        "prox_rows": (0, False, np.zeros(1), V, 0.5, np.zeros((N, P)), 1),
        "chacha20_chunks": (KEY, 0, 0, np.zeros(128, np.uint64)),
        "gaussian": (KEY, 1, np.ones(M), grid, sums, 1),
        "gaussian_words": (KEY, 0, words[0], words, 1e3, 2, np.zeros(2), np.zeros(2, np.uint8)),
        "goe": (sums, sums, square, 1),
        "shuffle_sum": (KEY, 8, 6, V, 1.0, 9, 1 << 18, law, law, np.zeros(P, np.int64), 1),
        "subsets": (KEY, 4, np.array([0, 3, N]), np.array([2, 1])),
        "poisson_samples": (KEY, 4, np.array([0, 3, N]), words[0] + np.uint64(1 << 63)),
        "in_silos": (*rows, np.array([0, 3, N])),
        "on_grid": (sums, grid),
        "all_finite": (ones,),
        "place_columns": ((ones, ones), np.zeros((N, 2))),
        "loss_block": (loss(), ones, *np.zeros((4, N))),
        "vmath": (0, ones, np.zeros(N)),
    }


def array_paths(value, path=()):
    """Where the arrays with elements of several bytes are in nested arguments."""
    if isinstance(value, np.ndarray):
        if value.itemsize > 1:
            yield path
    elif isinstance(value, tuple):
        for i, entry in enumerate(value):
            yield from array_paths(entry, (*path, i))
    elif isinstance(value, SimpleNamespace):
        for name, entry in vars(value).items():
            yield from array_paths(entry, (*path, name))


def replaced(value, path):
    """`value` with a misaligned copy of the array at `path`."""
    if not path:
        return misaligned(value)
    key, rest = path[0], path[1:]
    if isinstance(value, tuple):
        return (*value[:key], replaced(value[key], rest), *value[key + 1 :])
    return SimpleNamespace(**(vars(value) | {key: replaced(getattr(value, key), rest)}))


def names_of(name):
    return list(inspect.signature(getattr(_core, name)).parameters)


def paths_of(name):
    """Where the arrays are that C reads."""
    return [
        path
        for path in array_paths(calls()[name])
        if names_of(name)[path[0]] not in COPIED and (name, path[-1]) not in UNREAD
    ]


def test_every_function_that_takes_arrays_is_tried():
    functions = {name for name in vars(_core) if callable(getattr(_core, name))}
    classes = {name for name in functions if isinstance(getattr(_core, name), type)}
    own = {name for name in functions - classes if not name.startswith("__")}
    assert own == set(calls()) | NO_ARRAYS


@for_each("name", calls())
def test_aligned_arrays_are_taken(name):
    getattr(_core, name)(*calls()[name])


@for_each("name", calls())
def test_a_misaligned_array_is_refused(name):
    assert paths_of(name)
    for path in paths_of(name):
        arguments = replaced(calls()[name], path)
        with pytest.raises(ValueError, match="must be aligned"):
            getattr(_core, name)(*arguments)


@for_each("name", ["data", "indices", "indptr"])
def test_misaligned_sparse_entries_are_refused(name):
    data = records(sparse=True)
    setattr(data.X, name, misaligned(getattr(data.X, name)))
    assert_refused("must be aligned", _core.glm_margins, data, np.ones((1, P)), np.zeros(N), 1)


@for_each("shape", [(P,), (N, P)])
@for_each("name", ["common", "scale", "z"])
def test_sweeps_refuse_misaligned_states(shape, name):
    arrays = {"common": np.zeros(shape), "scale": np.zeros(N), "z": np.zeros(P)}
    rounds = {"bounds": np.array([0, N]), "params": np.zeros(1), "out": np.zeros((1, P))}

    plain = records(weighted=False)

    def prepared(bounds=None):
        sweeps = _core.Sweeps(plain, arrays["common"], arrays["scale"], loss(), 0.5, 1.0)
        rows = None if bounds is None else np.arange(N)
        sweeps.lay_out(rows, 0.5, 1.0, 2.0**-20, 1, bounds)
        return sweeps

    def run_rounds(bounds, params, out):
        proxes = [(0, 0.1, params), (-1, 0.0, np.zeros(1))]
        own = bounds if len(shape) == 2 else None
        prepared(own).rounds(arrays["z"], N, 1.0, P, proxes, None, 0, 0.0, out)

    run_rounds(**rounds)
    for part in ["bounds"] * (len(shape) == 2) + ["params", "out"]:
        assert_refused("must be aligned", run_rounds, **rounds | {part: misaligned(rounds[part])})
    arrays[name] = misaligned(arrays[name])
    for call in (lambda: prepared().sweep(arrays["z"], None, 0, 0.0), lambda: run_rounds(**rounds)):
        assert_refused("must be aligned", call)


def test_parameters_of_a_loss_are_aligned():
    assert_refused("must be aligned", _core.Loss, 0, misaligned(np.zeros(1)))


def test_kernels_take_misaligned_arguments_as_aligned_ones():
    X, y = RNG.standard_normal((N, P)), np.where(np.arange(N) % 2, 1.0, -1.0)
    w, H, g = np.full(P, 0.1), np.eye(P)[None], np.ones((1, P))
    made, remade = SiloData(X, y, [0, 3, N]), SiloData(X, misaligned(y), [0, 3, N])
    np.testing.assert_array_equal(
        kernels.glm_gradient(remade, misaligned(w), clip=1.0),
        kernels.glm_gradient(made, w, clip=1.0),
    )
    np.testing.assert_array_equal(
        kernels.newton_direction(misaligned(H), misaligned(g), floor=0.5),
        kernels.newton_direction(H, g, floor=0.5),
    )


def test_misaligned_records_are_refused_where_data_are_made():
    X, y = np.ones((N, P)), np.where(np.arange(N) % 2, 1.0, -1.0)
    assert_refused("aligned", SiloData, misaligned(X), y, [0, 3, N])
    stored = csr_array(X)
    for name in ("data", "indices", "indptr"):
        broken = stored.copy()
        setattr(broken, name, misaligned(getattr(broken, name)))
        data = SiloData(broken, y, [0, 3, N])  # copied
        np.testing.assert_array_equal(kernels.glm_margins(data, np.ones(P)), np.full(N, P))
