"""Readers give back what was written, through every compression, and refuse what is damaged."""

import bz2
import gzip
import lzma
import math
from contextlib import suppress

import numpy as np
import pytest
import scipy.sparse
from cases import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from makers import assert_refused, peak_memory
from sklearn.datasets import dump_svmlight_file, load_breast_cancer

from dpkern import datasets
from dpkern.data import SiloData, train_test_split
from dpkern.io import read_feature_range, read_records, read_table

COMPRESSIONS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
SECRET = "98765"


@pytest.fixture
def write(tmp_path):
    """Write text or bytes to a file, compressed as its name says, and give the path."""

    def write_file(name, content):
        raw = content if isinstance(content, bytes) else content.encode()
        suffix = next((s for s in COMPRESSIONS if s and name.endswith(s)), "")
        path = tmp_path / name
        path.write_bytes(COMPRESSIONS[suffix](raw))
        return path

    return write_file


def numbers(n=30, n_features=4):
    X = np.random.default_rng(0).normal(size=(n, n_features))
    X[np.abs(X) < 0.4] = 0.0
    X[-1, -1] = 1.0 / 3.0
    return X


# ---- Wisconsin


def test_wisconsin_ranges_contain_the_data():
    X = load_breast_cancer().data
    lo, hi = datasets.wisconsin_feature_range()
    assert np.all(lo <= X.min(axis=0))
    assert np.all(X.max(axis=0) <= hi)


def test_wisconsin_ranges_are_round_numbers_and_not_absurdly_wide():
    lo, hi = datasets.wisconsin_feature_range()
    for bound in np.concatenate([lo, hi]):
        assert float(f"{bound:.1e}") == bound  # at most two significant digits
    X = load_breast_cancer().data
    assert np.all(np.ptp(X, axis=0) > 0.6 * (hi - lo))


def test_wisconsin_names_and_labels_are_those_of_scikit_learn():
    source = load_breast_cancer()
    table = datasets.wisconsin_table()
    assert table.feature_names == tuple(source.feature_names)
    assert np.array_equal(table.X, source.data)
    assert np.array_equal(table.y, source.target)


def test_load_wisconsin_is_split_reproducibly_and_mapped_into_the_unit_box():
    data = datasets.load_wisconsin(m=5, how="random", seed=3, intercept=True, row_bound=2.0)
    again = datasets.load_wisconsin(m=5, how="random", seed=3)
    assert (data.n, data.n_features, data.d, data.m) == (569, 30, 31, 5)
    assert np.array_equal(data.X, again.X)
    assert np.count_nonzero(data.y > 0) == 357
    mapped = again.transform.apply(again.X)
    assert np.all(np.abs(mapped) <= 1.0)
    assert np.linalg.norm(data.transform.apply(data.X), axis=1).max() <= 2.0 * (1 + 1e-15)


@settings(max_examples=50, deadline=None)
@given(n=st.integers(2, 80), fraction=st.floats(0.01, 0.99), seed=st.integers(0, 99))
def test_train_test_split_puts_every_record_on_exactly_one_side(n, fraction, seed):
    X = np.arange(float(n))[:, np.newaxis]
    X_train, y_train, X_test, y_test = train_test_split(
        X, -X[:, 0], test_fraction=fraction, seed=seed
    )
    assert sorted([*X_train[:, 0], *X_test[:, 0]]) == list(range(n))
    assert np.array_equal(y_train, -X_train[:, 0])
    assert np.array_equal(y_test, -X_test[:, 0])
    assert len(X_test) == min(max(round(fraction * n), 1), n - 1)


def test_train_test_split_of_sparse_records_is_that_of_dense_ones():
    X, y = numbers(), np.arange(30)
    dense = train_test_split(X, y, seed=1)
    sparse = train_test_split(scipy.sparse.csr_array(X), y, seed=1)
    for part in (0, 2):
        assert np.array_equal(sparse[part].toarray(), dense[part])
        assert np.array_equal(sparse[part + 1], dense[part + 1])


@for_each("fraction", [0.0, 1.0, -1.0, math.nan])
def test_train_test_split_refuses_a_fraction_that_is_none(fraction):
    with pytest.raises(ValueError, match="test_fraction"):
        train_test_split(np.ones((3, 1)), np.ones(3), test_fraction=fraction)


@for_each(("n", "n_labels"), [(3, 2), (1, 1)])
def test_train_test_split_refuses_records_that_do_not_suffice(n, n_labels):
    with pytest.raises(ValueError, match="as many rows as entries, at least 2"):
        train_test_split(np.ones((n, 1)), np.ones(n_labels))


# ---- LIBSVM


@for_each("suffix", COMPRESSIONS)
@for_each("stem", ["data", "data.svm", "data.libsvm", "data.t", "data.txt"])
def test_libsvm_text_is_read_back_exactly(tmp_path, write, stem, suffix):
    X = numbers()
    y = np.where(np.arange(30) % 2, 1, -1)
    plain = tmp_path / "plain"
    dump_svmlight_file(X, y, str(plain), zero_based=False)
    path = write(stem + suffix, plain.read_bytes())
    np.testing.assert_allclose(read_table(path).X.toarray(), X, rtol=1e-15)
    table = read_table(path, n_features=4, sparse=False)
    np.testing.assert_allclose(table.X, X, rtol=1e-15)
    assert np.array_equal(table.y, y)
    assert table.y.dtype == np.int64
    assert table.X.dtype == np.float64
    assert table.X.flags.c_contiguous
    assert table.groups is None
    assert table.feature_names is None


def test_libsvm_index_zero_is_refused_and_an_empty_first_column_stays(write):
    with pytest.raises(ValueError, match=r"line 2 must .* indices from 1"):
        read_table(write("zero", "1 1:1 2:3\n-1 0:1\n"))
    table = read_table(write("one", "1 2:1\n-1 3:4\n"))
    assert table.X.toarray().tolist() == [[0, 1, 0], [0, 0, 4]]


def test_libsvm_records_without_features_and_comments_are_read(write):
    table = read_table(write("a", "# a comment\n-1\n+1 # bare\n+1 2:5 # note\n\n-1 1:3\n"))
    assert table.X.toarray().tolist() == [[0, 0], [0, 0], [0, 5], [3, 0]]
    assert table.y.tolist() == [-1, 1, 1, -1]


@for_each(
    ("n_features", "expected"),
    [(2, [[3, 0], [0, 4]]), (4, [[3, 0, 0, 0], [0, 4, 0, 0]])],
)
def test_libsvm_rows_are_padded_to_n_features(write, n_features, expected):
    table = read_table(write("a.svm", "1 1:3\n-1 2:4\n"), n_features=n_features, dtype=np.float32)
    X = table.X.toarray() if scipy.sparse.issparse(table.X) else table.X
    assert X.tolist() == expected
    assert table.X.dtype == np.float32


@for_each(
    ("text", "line"),
    [
        (f"1 1:2\n1 1:{SECRET}x\n", 2),
        (f"1 1:2\n-1 2:3\nx{SECRET} 1:2\n", 3),
        (f"1 1:2\n1 2:1 1:{SECRET}\n", 2),
        (f"1 1:2\n1 {SECRET}\n", 2),
        (f"1 1:2\n1 a:{SECRET}\n", 2),
        (f"1 1:2\n\n1 -1:{SECRET}\n", 3),
        (f"1 1:2\n1 99999999999:{SECRET}\n", 2),
    ],
)
def test_a_bad_libsvm_line_is_named_without_its_values(write, text, line):
    with pytest.raises(ValueError, match=rf"bad\.svm, line {line} must be") as caught:
        read_table(write("bad.svm", text))
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__


def test_the_storage_of_libsvm_text_does_not_depend_on_its_records(write):
    for n_entries in (1, 10, 11, 40):
        entries = np.arange(n_entries)
        X = np.zeros((10, 4))
        X[entries % 10, entries // 10] = entries + 1.5
        lines = (" ".join(["1", *(f"{k + 1}:{v}" for k, v in enumerate(x) if v)]) for x in X)
        path = write("a.svm", "\n".join(lines))
        rows = read_table(path, n_features=4).X
        assert scipy.sparse.issparse(rows)
        assert np.array_equal(rows.tocoo().toarray(), X)  # which needs indices of one dtype
        assert np.array_equal(read_table(path, n_features=4, sparse=False).X, X)


def test_the_storage_of_every_format_may_be_stated(tmp_path, write):
    X = numbers()
    path = write("a.csv", "".join(",".join(map(repr, [*x, 1.0])) + "\n" for x in X.tolist()))
    np.savez(tmp_path / "a.npz", X=X, y=np.ones(30))
    for one in (path, tmp_path / "a.npz"):
        for sparse in (None, False, True):
            rows = read_table(one, sparse=sparse, dtype=np.float32).X
            assert scipy.sparse.issparse(rows) == bool(sparse)
            assert rows.dtype == np.float32
            assert np.array_equal(rows.toarray() if sparse else rows, X.astype(np.float32))
    with pytest.raises(ValueError, match=r"n_features must be .* with sparse=False for LIBSVM"):
        read_table(write("a.svm", "1 1:2\n"), sparse=False)


WIDTH_READ = "the number of features was read from the records, as the largest index in them"


def test_a_width_that_is_read_from_records_is_noted(write):
    """One record decides how long the model is, unless the number is stated."""
    path = write("a.svm", "".join(f"{(-1) ** i} {i % 7 + 1}:1\n" for i in range(40)) + "1 8:1\n")
    read, stated = read_table(path), read_table(path, n_features=8)
    options = {"classes": [-1, 1], "row_bound": 1.0}

    def made(X, y):
        yield SiloData.split(X, y, 2, seed=0, **options)
        yield SiloData.split(X[:30], y[:30], 2, seed=0, **options)
        yield SiloData.split(train_test_split(X, y)[0], y[:33], 2, seed=0, **options)
        yield SiloData(X, y, [0, len(y)], **options)
        yield SiloData.from_silos([(X[:20], y[:20]), (X[20:], y[20:])], **options)
        yield SiloData.from_groups(X, y, np.arange(len(y)) % 2, **options)
        yield SiloData.split(SiloData(X, y, [0, len(y)], **options).X, y, 1, **options)

    for data in made(read.X, read.y):
        assert any(note.startswith(WIDTH_READ) for note in data.notes)
    for data in made(stated.X, stated.y):
        assert not any(note.startswith(WIDTH_READ) for note in data.notes)


def test_wide_libsvm_text_is_never_made_dense(write):
    path = write("a.svm", "1 5:2 2147483647:3\n-1 1:4\n")
    table, peak = peak_memory(read_table, path)
    X = table.X
    assert peak < 1e7
    assert X.shape == (2, 2**31 - 1)
    assert X.indices.tolist() == [4, 2**31 - 2, 0]
    assert X.indices.dtype == np.int32


# ---- CSV


@for_each("suffix", COMPRESSIONS)
@for_each("header", [False, True])
def test_csv_text_is_read_back_exactly(write, suffix, header):
    X = numbers()
    rows = [",".join([*map(repr, row.tolist()), "yes" if row[0] > 0 else "no"]) for row in X]
    lines = ["a,b,c,d,label", *rows] if header else rows
    table = read_table(write("data.csv" + suffix, "\n".join(lines) + "\n"))
    assert np.array_equal(table.X, X)
    assert np.array_equal(table.y == "yes", X[:, 0] > 0)
    assert table.feature_names == (("a", "b", "c", "d") if header else None)


@for_each("target", ["y", "1", 1, -2])
def test_csv_columns_are_found_by_name_and_index(write, target):
    path = write("data.csv", "s,y,x\n10,1,0.5\n9,0,1.5\n")
    for silo in ("s", "0", 0, -3):
        table = read_table(path, target=target, silo_column=silo)
        assert table.X.tolist() == [[0.5], [1.5]]
        assert table.y.tolist() == [1, 0]
        assert table.groups.tolist() == [10, 9]
        assert table.feature_names == ("x",)


@for_each(
    ("text", "has_header"),
    [
        ("a,b,y\n1,2,0\n", True),
        ("1,2,M\n3,4,B\n", False),
        ("1,2,0\n3,4,1\n", False),
        ("1,2,M\n", False),
    ],
)
def test_a_header_is_where_a_name_stands_above_a_number(write, text, has_header):
    table = read_table(write("data.csv", text))
    assert (table.feature_names is not None) == has_header
    assert len(table.X) == text.count("\n") - has_header


@for_each("text", ["1,2,y\n3,4,0\n", "1,2,x7\n3,4,8\n", "age,2019,y\n3,4,0\n"])
def test_a_first_row_of_numbers_and_names_must_be_stated(write, text):
    """One record, with a label or an id of letters or digits, would decide."""
    path = write("data.csv", text)
    assert_refused("line 1 must be said to hold names, by header=True, or", read_table, path)
    assert len(read_table(path, header=True).X) == 1


@for_each("record", ["1.5,2.5,a", "-1e3,2,b;c", "2,1,3", "0,0,x|y"])
@for_each("first", ["age,bmi,y", "1,2,0", "1,2,a;b;c", "age|1,bmi,y"])
def test_no_record_changes_names_or_separators(write, first, record):
    """Of valid files: one record more or less, and one in the place of another."""
    with suppress(ValueError):  # where something must be stated
        expected = read_table(write("a.csv", f"{first}\n3,4,5\n7,8,9\n"))
        found = read_table(write("b.csv", f"{first}\n{record}\n7,8,9\n"))
        assert found.feature_names == expected.feature_names
        assert found.X.shape == expected.X.shape


def test_a_stated_header_overrides_the_guess(write):
    path = write("data.csv", "1,2,0\n3,4,1\n")
    assert read_table(path, header=True).feature_names == ("1", "2")
    assert len(read_table(path, header=False).X) == 2


def test_csv_takes_quotes_spaces_blank_lines_crlf_and_a_byte_order_mark(write):
    text = b'\xef\xbb\xbf"a, b",c, y\r\n\r\n 1, 2 ,"no, never"\r\n3,4,yes\r\n\r\n'
    table = read_table(write("data.csv", text))
    assert table.feature_names == ("a, b", "c")
    assert table.X.tolist() == [[1, 2], [3, 4]]
    assert table.y.tolist() == ["no, never", "yes"]


@for_each(
    ("labels", "kind"),
    [(["1", "-1"], "i"), (["1.0", "2"], "i"), (["1.5", "2"], "f"), (["a", "2"], "U")],
)
def test_labels_are_whole_numbers_or_numbers_or_strings(write, labels, kind):
    table = read_table(write("data.csv", f"1,{labels[0]}\n2,{labels[1]}\n"), header=False)
    assert table.y.dtype.kind == kind


@for_each("number", ["12_34", "\uff11\uff12", "\u0663", "1_0.5", "1e1_0"])
@for_each("header", ["a,b,y\n", ""])
def test_text_is_never_another_number(write, number, header):
    text = f"{header}1,3,0\n{number},4,1\n"
    with pytest.raises(ValueError, match=r"csv, line \d: column .* must be a number, got text"):
        read_table(write("a.csv", text))
    with pytest.raises(ValueError, match=r"csv, line \d: column .* must be a number, got text"):
        read_table(write("a.csv", f"{header}{number},3,0\n1,4,1\n"))  # no header of its own
    for line in (f"1 1:{number}", f"{number} 1:1", f"1 {number}:1"):
        with pytest.raises(ValueError, match=r"svm, line 2 must be 'label index:value"):
            read_table(write("a.svm", f"1 1:1\n{line}\n"))
    with pytest.raises(ValueError, match="line 2 must be lo,hi or name,lo,hi with numbers"):
        read_feature_range(write("r.csv", f"-1,1\n0,{number}\n"))
    with pytest.raises(ValueError, match="target must be a column"):
        read_table(write("b.csv", "1,2\n3,4\n"), target=number)


def test_comments_of_libsvm_text_may_be_any_text(write):
    table = read_table(write("a.svm", "1 1:1 # visit_3, \u00e4\n# a_b\n-1 2:1\n"))
    assert table.y.tolist() == [1, -1]


@for_each(
    ("labels", "expected"),
    [
        (["1", "1.0"], [1, 1]),
        (["+1", "-1"], [1, -1]),
        (["01", "1"], ["01", "1"]),
        (["1_0", "10"], ["1_0", "10"]),
        (["007.5", "7.5"], [7.5, 7.5]),
        (["9007199254740993", "9007199254740992"], [9007199254740993, 9007199254740992]),
        (["99999999999999999998", "99999999999999999999"],) * 2,
        (["9007199254740993", "0.5"],) * 2,
        (["1e300", "2"], [1e300, 2.0]),
    ],
)
def test_labels_that_differ_as_text_stay_apart(write, labels, expected):
    path = write("a.csv", "".join(f"1,{label}\n" for label in labels))
    assert read_table(path, header=False).y.tolist() == expected


def test_classes_say_whether_labels_are_text(write):
    """And not the labels that happen to be in a file."""
    path = write("a.csv", "1,1\n2,1\n")
    for classes, expected in (([0, 1], [1, 1]), (["1", "A"], ["1", "1"]), (None, [1, 1])):
        assert read_table(path, classes=classes).y.tolist() == expected
        assert read_records(path, n_features=1, classes=classes)[1].tolist() == expected


@for_each(
    ("names", "expected"),
    [
        (["9", "10"], [9, 10]),
        (["1", "01", "001"],) * 2,
        (["1", "1.0"],) * 2,
        (["9007199254740993", "9007199254740992"], [9007199254740993, 9007199254740992]),
        (["9" * 19, "9" * 18 + "8"],) * 2,
    ],
)
def test_silos_and_persons_keep_their_text(write, names, expected):
    path = write("a.csv", "id,a,y\n" + "".join(f"{name},1,0\n" for name in names))
    assert read_table(path, silo_column="id").groups.tolist() == expected
    assert read_table(path, person="id").person.tolist() == names


def test_long_labels_of_libsvm_text_stay_apart(write):
    labels = [9007199254740993, 9007199254740992, -1]
    path = write("a.svm", "# one\n\n" + "".join(f"{label} 1:1 # two\n" for label in labels))
    assert read_table(path).y.tolist() == labels


BAD_CSV = {
    "ragged": (f"1,2,0\n3,{SECRET}\n", {}, "data.csv, line 2 must have 3 fields .* got 2"),
    "text feature": (
        f"1,2,0\n3,x{SECRET},1\n",
        {},
        r"data.csv, line 2: column 1 \(from 0\) must be a number",
    ),
    "named text feature": (
        f"a,b,y\n1,2,0\n3,x{SECRET},1\n",
        {},
        "line 3: column 'b' must be a number",
    ),
    "missing": (
        f"1,?,0\n,NaN,1\n{SECRET},2,\n3,4,1\n",
        {},
        r"got 4 in 3 of 4 rows \(1 in column 0, 2 in column 1, 1 in column 2\)",
    ),
    "missing silo": (
        "?,1,0\na,2,1\n",
        {"silo_column": 0},
        r"no missing values .* got 1 in 1 of 2 rows \(1 in column 0\)",
    ),
    "missing in columns with names": (
        f"a,y,b\nNA,?,{SECRET}\n",
        {"target": "y"},
        r"got 2 in 1 of 1 row \(1 in column 'a', 1 in column 'y'\): fill them",
    ),
    "missing number": (
        "1,2,0.5\n3,4,NA\n5,6,2.5\n",
        {},
        "no missing values .* got 1 in 1 of 3 rows",
    ),
    "row of nothing": (f"1,2,{SECRET}\n,,\n", {}, "no missing values .* got 3 in 1 of 2 rows"),
    "empty": ("", {}, "data.csv is empty"),
    "blank": ("\n \n", {}, "data.csv is empty"),
    "header only": ("a,b,y\n", {}, "must hold records, got a header only"),
    "one column": ("1\n2\n", {}, "line 1 must hold features and a target .* got one column"),
    "no such name": ("a,y\n1,2\n", {"target": "z"}, "target must be a column, got 'z': .* a, y"),
    "no names": ("1,2\n1,2\n", {"target": "z"}, "there is no header"),
    "no such index": ("a,y\n1,2\n", {"target": 2}, "target must be one of 2 columns from 0, got 2"),
    "no such negative index": (
        "a,y\n1,2\n",
        {"target": "-3"},
        "target must be one of 2 columns from 0, got -3",
    ),
    "twice the name": ("y,y,x\n1,2,3\n", {"target": "y"}, "must name one column, got 'y'"),
    "same column": ("a,b,y\n1,2,3\n", {"silo_column": "y"}, "must be two columns, got 2"),
    "no feature": ("a,y\n1,2\n", {"silo_column": "a"}, "must hold a feature beside target"),
    "wrong width": ("1,2,0\n3,4,1\n", {"n_features": 3}, "must have 3 features, got 2"),
    "open quote": (f'1,2,0\n3,"{SECRET},1\n', {}, "data.csv, line 2: unexpected end of data"),
    "not text": (b"\xff\xfe\x00,\x81\n", {}, "not UTF-8"),
}


@for_each("name", BAD_CSV)
def test_bad_csv_is_refused_naming_the_place_and_no_value(write, name):
    text, options, message = BAD_CSV[name]
    with pytest.raises(ValueError, match=message) as caught:
        read_table(write("data.csv", text), **options)
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


SEPARATED = {
    "semicolons": "a;b;y\n1.5;2;0\n3;4;1\n",
    "semicolons and quotes": '"a";"b";"y"\n"1.5";"2";"0"\n3;4;1\n',
    "tabs": "a\tb\ty\n1.5\t2\t0\n3\t4\t1\n",
    "bars": "a|b|y\n1.5|2|0\n3|4|1\n",
    "commas": "a,b,y\n1.5,2,0\n3,4,1\n",
    "a comma in a name": '"a,a";b;y\n1.5;2;0\n3;4;1\n',
}


@for_each("name", SEPARATED)
def test_the_separator_is_found_in_the_first_lines(write, name):
    table = read_table(write("a.csv", SEPARATED[name]))
    assert table.X.tolist() == [[1.5, 2.0], [3.0, 4.0]]
    assert table.y.tolist() == [0, 1]
    assert table.feature_names == (("a,a" if "name" in name else "a"), "b")


def test_the_separator_is_found_without_a_header_and_may_be_named(write):
    path = write("a.csv", "1;2;0\n3;4;1\n")
    assert read_table(path).X.tolist() == [[1, 2], [3, 4]]
    assert read_records(path, n_features=2)[0].tolist() == [[1, 2], [3, 4]]
    spaced = write("b.csv", "1:2:0\n3:4:1\n")
    assert read_table(spaced, sep=":").X.tolist() == [[1, 2], [3, 4]]
    lo, hi = read_feature_range(write("r.csv", "a;0;1\nb;0;2\n"), feature_names=("a", "b"))
    assert (lo.tolist(), hi.tolist()) == ([0, 0], [1, 2])


def test_another_separator_than_the_named_one_is_pointed_out(write):
    path = write("a.csv", "a;b;y\n1,5;2;0\n3;4;1\n")
    with pytest.raises(ValueError, match=r"between ',' as sep says, got one column: .* have ';'$"):
        read_table(path, sep=",")
    with pytest.raises(ValueError, match=r"2 features between ',' as sep says, .* have ';'$"):
        read_records(path, n_features=2, sep=",")
    with pytest.raises(ValueError, match=r"between ',' as sep says, got one column$"):
        read_table(write("b.csv", "1\n2\n"), sep=",")


def test_the_target_of_a_table_is_named_or_numbered(write, tmp_path):
    assert read_table(write("a.csv", "a,b,y\n1,2,0\n")).target == "y"
    assert read_table(write("a.csv", "a,b,y\n1,2,0\n"), target=0).target == "a"
    assert read_table(write("b.csv", "1,2,0\n3,4,1\n")).target == "2"
    assert read_table(write("c.svm", "1 1:3\n-1 2:4\n")).target is None


@for_each(
    ("text", "where"),
    [
        ("a;b;y\n1,5;2,25;0\n3;4;1\n", "line 2: column 'a' must have decimal points"),
        ("a;b;y\n1;2;0\n3;98765,5;1\n", "line 3: column 'b' must have decimal points"),
        ("1,5;2,25;0\n3,5;4,5;1\n", r"line 1: column 0 \(from 0\) must have decimal points"),
    ],
)
def test_decimal_commas_are_named(write, text, where):
    assert SECRET not in assert_refused(where, read_table, write("a.csv", text))


@for_each("sep", [None, ";"])
@for_each("text", ["y;a;b\nill;1,5;2,5\nwell;3,5;4,5\n", "a;b;y\n1,5;-2,5;ill\n"])
def test_decimal_commas_hide_no_header(write, text, sep):
    with pytest.raises(
        ValueError, match="line 2: column 'a' must have decimal points, got a decimal"
    ):
        read_table(write("a.csv", text), target="y", sep=sep)


@for_each("first", ["", '""', "Unnamed: 0"])
def test_an_unnamed_index_column_is_pointed_out(write, first):
    path = write("a.csv", f"{first},a,b,y\n0,1,2,0\n1,3,4,1\n")
    assert_refused(r"row index that pandas' to_csv writes: .* index=False", read_table, path)
    table = read_table(path, silo_column=0)  # whoever names it knows what it is
    assert table.X.tolist() == [[1, 2], [3, 4]]


def test_libsvm_rows_beyond_the_features_of_a_model_are_refused(write):
    """Cut to them, a file of 68 features gave one label for all by a model of 30."""
    path = write("a.svm", "1 1:3\n-1 68:4\n")
    for read in (read_table, read_records):
        assert_refused("must have 30 features, got 68", read, path, n_features=30)


# ---- archives, and files that are not what they seem


def test_npz_arrays_are_read_back(tmp_path):
    X, y, groups = numbers(), np.arange(30) % 2, np.repeat(["a", "b"], 15)
    np.savez(tmp_path / "data.npz", X=X, y=y, groups=groups)
    table = read_table(tmp_path / "data.npz", n_features=4, dtype=np.float32)
    assert np.array_equal(table.X, X.astype(np.float32))
    assert table.X.dtype == np.float32
    assert np.array_equal(table.y, y)
    assert np.array_equal(table.groups, groups)
    np.savez_compressed(tmp_path / "bare.npz", X=np.asfortranarray(X), y=y)
    bare = read_table(tmp_path / "bare.npz")
    assert bare.groups is None
    assert bare.X.flags.c_contiguous


@for_each(
    ("arrays", "message"),
    [
        ({"X": np.ones((2, 1))}, "got no array y"),
        ({"data": np.ones(2)}, "got no array X and y"),
        ({"X": np.ones((2, 1)), "y": np.ones(3)}, r"y must have shape \(2,\), .* got \(3,\)"),
        ({"X": np.ones((2, 1)), "y": np.ones(2), "groups": np.ones(1)}, "groups must have shape"),
        ({"X": np.ones(2), "y": np.ones(2)}, r"got dtype float64 and shape \(2,\)"),
        ({"X": np.array([["a"]]), "y": np.ones(1)}, "X must be numbers"),
        ({"X": np.array([[None]]), "y": np.ones(1)}, "not an .npz archive of plain arrays"),
    ],
)
def test_bad_archives_are_refused_and_never_unpickled(tmp_path, arrays, message):
    np.savez(tmp_path / "data.npz", **arrays)
    assert_refused(message, read_table, tmp_path / "data.npz")


def csr_arrays(X):
    X = scipy.sparse.csr_array(X)
    return dict(
        format="csr",
        shape=X.shape,
        data=X.data,
        indices=X.indices.astype(np.int64),
        indptr=X.indptr,
    )


@for_each("dtype", [np.float32, np.float64])
def test_csr_archives_are_read_back_with_and_without_labels(tmp_path, dtype):
    X, y, groups = numbers(), np.arange(30) % 2, np.repeat(["a", "b"], 15)
    np.savez(tmp_path / "a.npz", y=y, groups=groups, **csr_arrays(X))
    table = read_table(tmp_path / "a.npz", n_features=4, dtype=dtype)
    assert table.X.format == "csr"
    assert table.X.dtype == dtype
    assert np.array_equal(table.X.toarray(), X.astype(dtype))
    assert np.array_equal(table.y, y)
    assert np.array_equal(table.groups, groups)
    scipy.sparse.save_npz(tmp_path / "b.npz", scipy.sparse.csr_matrix(X))
    back, none = read_records(tmp_path / "b.npz", n_features=4, dtype=dtype)
    assert np.array_equal(back.toarray(), X.astype(dtype))
    assert none is None
    assert_refused("must hold X and y, got no array y", read_table, tmp_path / "b.npz")
    assert_refused("must have 5 features, got 4", read_records, tmp_path / "b.npz", n_features=5)


@for_each(
    ("wrong", "message"),
    [
        ({"format": "csc"}, r"must hold X as 'csr', got 'csc': save X\.tocsr"),
        ({"indices": np.array([0, 98765])}, "its arrays are no CSR matrix of numbers"),
        ({"indptr": np.array([0, 2, 1])}, "its arrays are no CSR matrix of numbers"),
        ({"data": np.array(["98765", "2"])}, "its arrays are no CSR matrix of numbers"),
        ({"y": np.ones(3)}, r"y must have shape \(2,\), .* got \(3,\)"),
    ],
)
def test_bad_csr_archives_are_refused_without_their_values(tmp_path, wrong, message):
    np.savez(tmp_path / "a.npz", **({"y": np.ones(2)} | csr_arrays(np.eye(2)) | wrong))
    assert SECRET not in assert_refused(message, read_table, tmp_path / "a.npz")


def test_a_csr_archive_without_its_arrays_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", y=np.ones(2), format="csr")
    assert_refused("no CSR matrix", read_table, tmp_path / "a.npz")


@for_each("name", ["x.npz", "x.gz", "x.bz2", "x.xz", "x.csv.zip"])
def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"1,2,3\n4,5,6\n" * 50)
    assert_refused(r"x\.\w+(\.zip)?", read_table, tmp_path / name)


@for_each("suffix", [".gz", ".bz2", ".xz"])
def test_a_truncated_file_is_refused(tmp_path, suffix):
    rows = "".join(f"{i},{i * i % 97},{i % 2}\n" for i in range(20_000))
    (tmp_path / f"x{suffix}").write_bytes(COMPRESSIONS[suffix](rows.encode())[:-3000])
    assert_refused("is damaged or not a", read_table, tmp_path / f"x{suffix}")


@for_each("name", ["none.csv", "none.csv.gz", "none.svm", "none.npz"])
def test_a_missing_file_is_named(tmp_path, name):
    with pytest.raises(FileNotFoundError, match="none"):
        read_table(tmp_path / name)


@for_each("name", ["folder", "folder.npz", "folder.gz"])
def test_a_directory_is_refused(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(IsADirectoryError, match=r"got a folder: dpkern\.read_parquet"):
        read_table(tmp_path / name)


@for_each("options", [{"target": 0}, {"silo_column": "a"}, {"header": False}, {"sep": ";"}])
def test_csv_options_are_refused_for_other_formats(tmp_path, write, options):
    np.savez(tmp_path / "a.npz", X=np.ones((2, 1)), y=np.ones(2))
    for path in (tmp_path / "a.npz", write("a.svm", "1 1:2\n")):
        assert_refused("must be left out", read_table, path, **options)


@for_each(
    ("options", "message"),
    [
        *(({"sep": sep}, "sep must be one character") for sep in ("", ";;", '"', "\n", 1)),
        *(({"dtype": kind}, "TypeError: float32 or float64") for kind in ("f2", "i8", "U3")),
        ({"n_features": 0}, "n_features must be"),
        ({"n_features": 1.5}, "TypeError: n_features must be"),
    ],
)
def test_options_that_no_table_can_have_are_refused(write, options, message):
    assert_refused(message, read_table, write("a.csv", "1,2\n"), **options)


# ---- feature ranges


@for_each("suffix", COMPRESSIONS)
@for_each(
    "text",
    ["-1,1\n0,10\n", "lo,hi\n-1,1\n0,10\n", "a,-1,1\nb,0,10\n", "name,lo,hi\na,-1,1\nb,0,10\n"],
)
def test_feature_ranges_are_read(write, text, suffix):
    names = ("a", "b") if "a," in text else None
    lo, hi = read_feature_range(write("range.csv" + suffix, text), feature_names=names)
    assert (lo.tolist(), hi.tolist()) == ([-1, 0], [1, 10])


def test_feature_ranges_are_put_into_the_order_of_the_names(write):
    lo, hi = read_feature_range(write("r.csv", "a,-1,1\nb,0,10\n"), feature_names=("b", "a"))
    assert (lo.tolist(), hi.tolist()) == ([0, -1], [10, 1])


@for_each(
    ("text", "names", "message"),
    [
        ("", None, "no rows"),
        ("lo,hi\n", None, "no rows"),
        ("0,1\n0\n", None, "line 2 must be lo,hi"),
        ("0,1\n0,x\n", None, "line 2 must be lo,hi"),
        ("0,1,2,3\n", None, "line 1 must be lo,hi"),
        ("a,0,1\n0,1\n", None, "line 2 must be"),
        (
            "a,0,1\nb,1,0\n",
            None,
            "r.csv, line 2 must have lo < hi, .* got 1.0 and 0.0 for feature 'b'",
        ),
        ("lo,hi\n0,1\n1,1\n", None, "line 3 must have lo < hi, .* got 1.0 and 1.0 for feature 1$"),
        (
            "0,1\n0,inf\n",
            ("a", "b"),
            "line 2 must .* both finite, got 0.0 and inf for feature 'b'$",
        ),
        ("0,nan\n", ("a",), "line 1 must have lo < hi, both finite, got 0.0 and nan"),
        ("a,0,1\n", ("b",), "no row for 'b'; no feature for the rows 'a'"),
        ("a,0,1\nb,0,1\n", None, "rows lo,hi in the order of the columns .* without names"),
        ("a,0,1\na,0,1\n", ("a", "b"), "one row for each feature, got no row for 'b'"),
    ],
)
def test_bad_feature_ranges_are_refused(write, text, names, message):
    assert_refused(message, read_feature_range, write("r.csv", text), feature_names=names)


# ---- public data sets, where they are


def test_a9a_reads_as_its_description_says(real_data):
    train = read_table(real_data / "a9a" / "a9a.xz")
    test = read_table(real_data / "a9a" / "a9a.t.xz", n_features=train.X.shape[1])
    assert train.X.shape == (32561, 123)
    assert test.X.shape == (16281, 123)
    assert np.count_nonzero(train.y == 1) == 7841
    assert np.count_nonzero(test.y == 1) == 3846
    assert scipy.sparse.issparse(train.X)
    assert scipy.sparse.issparse(test.X)
    assert train.X.data.tolist() == [1.0] * train.X.nnz
    assert SiloData.split(train.X, train.y, 10, seed=0).m == 10


def test_wdbc_reads_as_scikit_learns_copy(real_data):
    table = read_table(real_data / "wdbc" / "wdbc.data.xz", target=1, silo_column=0)
    source = load_breast_cancer()
    assert np.array_equal(table.X, source.data)
    assert np.array_equal(table.y == "B", source.target == 1)


def test_missing_values_of_the_original_wisconsin_set_are_counted(real_data):
    name = "breast-cancer-wisconsin"
    with pytest.raises(ValueError, match=r"no missing values .* got 16 in 16 of 699 rows"):
        read_table(real_data / name / f"{name}.data.xz")


def test_the_mixed_columns_of_adult_are_refused_by_place(real_data):
    with pytest.raises(ValueError, match=r"line 1: column 1 \(from 0\) must be a number"):
        read_table(real_data / "adult" / "adult.data.xz")


# ---- records to predict


def test_records_come_with_labels_exactly_where_there_is_a_column_more(write):
    bare, labelled = write("bare.csv", "1,2\n3,4\n"), write("labelled.csv", "1,2,5\n3,4,6\n")
    X, y = read_records(bare, n_features=2)
    np.testing.assert_array_equal(X, [[1, 2], [3, 4]])
    assert y is None
    X, y = read_records(labelled, n_features=2)
    np.testing.assert_array_equal(X, [[1, 2], [3, 4]])
    np.testing.assert_array_equal(y, [5, 6])
    X, y = read_records(labelled, n_features=2, target=0)
    np.testing.assert_array_equal(X, [[2, 5], [4, 6]])
    np.testing.assert_array_equal(y, [1, 3])
    X, y = read_records(labelled, n_features=2, silo_column=1)
    np.testing.assert_array_equal(X, [[1, 5], [3, 6]])
    assert y is None


def test_a_last_column_with_a_features_name_is_no_column_of_labels(write):
    path = write("a.csv", "id,a,b\n7,1,2\n8,3,4\n")
    with pytest.raises(ValueError, match="got all of them; unknown 'id': labels are named by tar"):
        read_records(path, n_features=2, feature_names=("a", "b"))
    X, y = read_records(path, n_features=2, feature_names=("a", "b"), target="id")
    np.testing.assert_array_equal(X, [[1, 2], [3, 4]])
    np.testing.assert_array_equal(y, [7, 8])


def test_records_of_another_width_are_refused(write):
    for text in ("1,2\n3,4\n", "1,2,3,4,5\n"):
        assert_refused("must have 3 features", read_records, write("other.csv", text), n_features=3)


def test_records_of_an_archive_may_lack_labels(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, X=numbers())
    X, y = read_records(path, n_features=4)
    np.testing.assert_array_equal(X, numbers())
    assert y is None
    assert_refused("got no array y", read_table, path)
