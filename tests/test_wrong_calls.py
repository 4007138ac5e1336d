"""Wrong calls end in an error that names the argument, or the file, line and column, and the cure.

Spreadsheets are as nobody prepared them; no case may end in an internal error, in a wrong result
in silence, or with a budget charged.
"""

import gzip
import itertools
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cases import for_each

import dpkern as dpk
from dpkern.cli import main
from dpkern.data import Column, train_test_split
from dpkern.estimators import DPLogisticRegression, DPRidge, PrivateSearchCV
from dpkern.models.penalties import L1

HEADER = "age,bmi,ill"
ROWS = [f"{20 + 7 * i % 60}.5,{15 + 3 * i % 25},{('no', 'yes')[i % 2]}" for i in range(30)]


def sheet(*lines, header=HEADER):
    """A sheet whose records 3, 4, ... are replaced by the lines."""
    return "\n".join([header, *ROWS[:3], *lines, *ROWS[3 + len(lines) :]]) + "\n"


def each(change, header=HEADER):
    return "\n".join([header, *map(change, ROWS)]) + "\n"


# What dpkern fit says of a file; and dpkern schema, where that is something else.
SHEETS = {
    "semicolons and decimal commas": (
        each(lambda row: row.replace(",", ";").replace(".", ","), "age;bmi;ill"),
        "line 2: column 'age' must have decimal points, got a decimal comma: pandas' read_csv(",
        "line 2: column 'age' must have decimal points, got decimal commas in",
    ),
    "thousands": (
        sheet('"1,234",30,yes'),
        "line 5: column 'age' must have decimal points, got a decimal comma or thousands separator",
        "line 5: column 'age' must have digits alone, got commas of decimals or of thousands",
    ),
    "trailing commas": (
        each(lambda row: f"{row},", f"{HEADER},"),
        "column 3 (from 0) must have a name in the header, got none: name it, or remove the column",
        None,
    ),
    "trailing commas below": (
        each(lambda row: f"{row},"),
        "line 2 must have 3 fields as the first row, got 4",
        "line 2 must have 3 fields, one for each column, got 4",
    ),
    "a row above the names": (
        f"Patients 2024,,\n{sheet()}",
        "line 1 must hold the names of the columns above numbers, or numbers, got text there and",
        "the first row does not look like names of columns: give them with --names A,B,C, or say",
    ),
    "a note above the names": (
        f"# of 2024\n{sheet()}",
        "line 1 must hold as many fields as line 2, 3, got 1: remove lines above the names",
        "lines above the names must leave the file",
    ),
    "Excel's sep": (
        f"sep=,\n{sheet()}",
        "got text there and in line 2: remove lines above the names",
        "lines above the names must leave the file",
    ),
    "end of a line in quotes": (
        sheet('"20\n.5",30,yes'),
        "line 6: column 'age' must be a number, got text after numbers: mend the cell",
        None,
    ),
    "open quotes": (
        sheet('"40,30,yes'),
        "line 31: unexpected end of data; quotes must be closed, and doubled within a field",
        "",
    ),
    "words": (sheet("forty,30,yes"), "line 5: column 'age' must be a number, got text after", None),
    "percent": (sheet("45%,30,yes"), "line 5: column 'age' must be a number", "got units in 1 of"),
    "currency": (sheet("$45,30,yes"), "line 5: column 'age' must be a number", "got units in 1 of"),
    "dates": (
        each(lambda row: f"2020-01-31,{row}", f"day,{HEADER}"),
        "line 2: column 'day' must be a number, got text: describe the columns by a schema",
        "line 2: column 'day' must hold numbers or categories, got dates in 1 of 1 distinct value: "
        "write days since a public date, or leave the column out by --ignore",
    ),
    "NA": (sheet("NA,30,yes"), "got 1 in 1 of 30 rows (1 in column 'age'): fill them or", None),
    "n/a": (sheet("n/a,30,yes"), "got 1 in 1 of 30 rows (1 in column 'age'): fill them or", None),
    "?": (sheet("?,30,yes"), "got 1 in 1 of 30 rows (1 in column 'age'): fill them or", None),
    "-": (sheet("-,30,yes"), "line 5: column 'age' must be a number, got text after numbers", None),
    "error of a formula": (
        sheet("#DIV/0!,30,yes"),
        "line 5: column 'age' must be a number, got text after numbers: mend the cell (units,",
        None,
    ),
    "infinity": (sheet("1e999,30,yes"), "must be finite, got 1 NaN or infinite value", None),
    "no label": (sheet("40,30,"), "must have no missing values (empty, ?, NA, NaN, null)", None),
    "another spelling": (
        sheet("40,30,Yes"),
        "the target must hold exactly two labels for classification, got more than two distinct "
        "values (is each spelt in one way?): more labels need --classes A,B,C",
        None,
    ),
    "a sum below": (sheet() + "Total,900,\n", "line 32: column 'age' must be a number", None),
    "one class": (
        each(lambda row: row.replace("yes", "no")),
        "got one distinct value: name both by --classes NEGATIVE,POSITIVE",
        None,
    ),
    "one row": (f"{HEADER}\n{ROWS[0]}\n", "name both by --classes NEGATIVE,POSITIVE", None),
    "a header alone": (f"{HEADER}\n", "must hold records, got a header only", ""),
    "nothing": ("", "is empty", ""),
    "a name twice": (
        sheet(header="age,age,ill"),
        "must have distinct names in its header, got 'age' twice: rename column 1 (from 0)",
        "got 'age' twice: dpkern schema --rename 1=NAME renames the one in place 1",
    ),
    "a blank name": (sheet(header="age,,ill"), "column 1 (from 0) must have a name in the", None),
    "an id of letters first": (
        "\n".join(f"{'x' * (i == 0)}{i},{row}" for i, row in enumerate(ROWS)),
        "line 1 must be said to hold names, by --header, or to be a record, by --no-header",
        "the first row does not look like names of columns",
    ),
    "Latin-1": (
        sheet(header="âge,bmi,ill").encode("latin-1"),
        "got bytes that are not UTF-8: in Latin-1, say: save it as CSV UTF-8",
        "",
    ),
    "UTF-16": (sheet().encode("utf-16"), "it is UTF-16: save it as CSV UTF-8", ""),
    "a workbook": (
        b"PK\x03\x04\xff\xfe\x00" * 9,
        "it is an Excel workbook or a ZIP archive: save",
        "",
    ),
    "an old workbook": (bytes.fromhex("d0cf11e0a1b11ae1") * 9, "it is an Excel workbook: save", ""),
    "gzip": (gzip.compress(sheet().encode()), "it is gzip's: let its name end with .gz", ""),
}
TAKEN = {
    "a byte order mark": f"\ufeff{sheet()}",
    "semicolons": each(lambda row: row.replace(",", ";"), "age;bmi;ill"),
    "tabs": each(lambda row: row.replace(",", "\t"), "age\tbmi\till"),
    "blank lines": "\n\n" + sheet().replace("\n", "\n\n"),
    "carriage returns": sheet().replace("\n", "\r\n"),
    "spaces": each(lambda row: row.replace(",", " , "), " age ,bmi, ill "),
    "a constant column": each(lambda row: f"1,{row.partition(',')[2]}"),
}
BUDGET = ["--epsilon", "1", "--delta", "1e-3"]
FIT = ["fit", "good.csv", *BUDGET]
SILO = ["silo", "good.csv", "--study", "study.toml", "--name", "a", "--keys", "."]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a sheet, and with what the command line makes of it."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("good.csv").write_text(sheet())
        Path("names.csv").write_text(sheet(header="bmi,age,ill"))
        Path("bare.csv").write_text("\n".join(ROWS))
        Path("third.csv").write_text(sheet("40,30,maybe"))
        Path("ranges.csv").write_text("age,100,0\nbmi,10,60\n")
        Path("comma.csv").write_text("age;0,5;100\nbmi;10;60\n")
        Path("study.toml").write_text("name: trial\n")
        age, bmi = (Column(name, "number", lo=0, hi=90) for name in ("age", "bmi"))
        ill = Column("ill", "target", classes=["no", "yes"])
        dpk.Schema([age, bmi, ill]).save("schema.json")
        text = Path("schema.json").read_text()
        Path("blank.json").write_text(text.replace("90", "null"))
        Path("nan.json").write_text(text.replace("90", "NaN"))
        assert main(["ledger", "used.json", "--epsilon", "1", "--delta", "1e-3"]) == 0
        out = ["--out", "model.npz", "--certificate", "cert.json", "--ledger", "used.json"]
        assert main([*FIT, *out]) == 0
        text = Path("cert.json").read_text()
        Path("cut.json").write_text(text[: len(text) // 2])
        Path("cut.npz").write_bytes(Path("model.npz").read_bytes()[:300])
    return folder


def refused(capsys, *argv):
    assert main(list(argv)) == 2, argv
    out, err = capsys.readouterr()
    assert not out
    assert err.count("dpkern: error: ") == 1
    return err


@for_each(("content", "fit", "schema"), SHEETS.values(), ids=SHEETS)
def test_messy_sheets_are_explained(capsys, tmp_path, content, fit, schema):
    path = tmp_path / "raw.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    ledger = tmp_path / "ledger.json"
    dpk.Accountant(ledger, epsilon=1.0, delta=1e-3)
    out = ["--out", str(tmp_path / "model.npz"), "--ledger", str(ledger)]
    err = refused(capsys, "fit", str(path), *BUDGET, *out)
    assert "raw.csv" in err or "the features" in err or "the target" in err
    assert fit in err
    assert not dpk.Accountant(ledger).entries
    assert len(list(tmp_path.iterdir())) == 2
    if schema is None:
        assert main(["schema", str(path)]) == 0
    else:
        assert (schema or fit) in refused(capsys, "schema", str(path))


@for_each("content", TAKEN.values(), ids=TAKEN)
def test_sheets_of_other_layouts_are_read(capsys, tmp_path, content):
    path = tmp_path / "raw.csv"
    path.write_text(content, newline="")
    assert main(["fit", str(path), *BUDGET]) == 0
    assert "30 training records, 2 features" in capsys.readouterr().out
    assert main(["schema", str(path)]) == 0


COMMANDS = [
    ("fit good.csv --epsilon 1.0e --delta 1e-5", "--epsilon: invalid float value"),
    ("fit good.csv --epsilon 1,5 --delta 1e-5", "--epsilon: invalid float value"),
    ("fit good.csv --epsilon -1 --delta 1e-5", "--epsilon must be positive and"),
    ("fit good.csv --epsilon 1e-5 --delta 1", "--delta must lie strictly between"),
    ("fit good.csv --epsilon 1 --delta 30", "--delta must lie strictly between 0"),
    ("fit good.csv --epsilon 1", "--epsilon needs --delta, well below 1 / (number of"),
    ("fit good.csv", "give a budget with --epsilon and --delta, or say --no-privacy"),
    ("FIT --solver gradient_decent", "did you mean 'gradient_descent'?"),
    ("FIT --loss logit", "did you mean 'logistic'?"),
    ("FIT --round 3", "unrecognized argument --round; did you mean '--rounds'?"),
    ("FIT --rounds 1.5", "--rounds: invalid int value: '1.5'"),
    ("FIT --rounds -1", "--rounds must be at least 1, got -1"),
    ("FIT --set penalty=lasso:1", "--set penalty must be l1:STRENGTH or"),
    ("FIT --hidden a", "--hidden: must be a comma-separated list, got 'a': numbers alone"),
    ("FIT --target sick", "target must be a column, got 'sick': columns are age, bmi, ill"),
    ("FIT --classes healthy,ill", "the target must hold labels of classes only"),
    ("FIT --silos 100", "--silos must be at most the 30 training records, got 100"),
    ("FIT --max-records 2", "--max-records must be left out without person"),
    ("FIT --feature-range 0,1", "0,1: No such file or directory"),
    ("FIT --feature-range ranges.csv", "line 1 must have lo < hi, both finite, got 100.0"),
    ("FIT --feature-range comma.csv", "line 1 must be lo,hi or name,lo,hi with numbers"),
    ("FIT --sep ;", "between ';' as --sep says, got one column: the file seems to have ','"),
    ("FIT --task regression", "the target must be real numbers for regression, got strings"),
    ("FIT --test bare.csv", "must have a header with the names of the model's columns, got"),
    ("FIT --test third.csv", "its target holds other values than labels of the training"),
    ("FIT --schema blank.json", "must have no blanks, got null or nothing for hi of age"),
    ("FIT --schema nan.json", "lo and hi of column 'age' must be finite with lo < hi"),
    ("FIT --schema cut.json", "cut.json must be JSON, got"),
    ("FIT --schema cert.json", 'a schema must be an object with "dpkern_schema": 1'),
    ("FIT --schema schema.json --target ill", "--target was given, and --schema says"),
    ("FIT --ledger used.json", "nothing was charged or released"),
    ("FIT --ledger model.npz", "model.npz is another kind of file"),
    ("FIT --out good.csv", "good.csv is read by this command; write to another file"),
    ("FIT --out nowhere/m.npz", "nowhere/m.npz: there is no folder nowhere"),
    ("FIT --out .", ". must be a regular file, or not be there, got a folder"),
    ("FIT --out m --certificate ./m", "--out and --certificate must be two files"),
    ("fit nowhere.csv BUDGET", "nowhere.csv: No such file or directory"),
    ("predict cert.json good.csv", "cert.json: not a dpkern model"),
    ("predict cut.npz good.csv", "cut.npz: not a dpkern model"),
    ("predict good.csv model.npz", "good.csv: not a dpkern model"),
    ("predict model.npz bare.csv", "or say --no-header if the features are, in order, 'age'"),
    ("predict model.npz names.csv", "column 0 must be 'age', got 'bmi'; the order differs"),
    ("verify cut.json", "cut.json is not JSON ("),
    ("verify good.csv", "good.csv is not JSON"),
    ("verify schema.json", "its format is not 'dpkern certificate'"),
    ("ledger used.json --epsilon 2 --delta 1e-3", "--epsilon must be that of used"),
    ("plan good.csv BUDGET", "required: --records"),
    ("plan --records 100 BUDGET", "give --schema FILE.json, or --features P"),
    ("plan --records 0 --features 2 BUDGET", "must be at least 1, got 0"),
    ("compare good.csv --epsilons a,b --delta 1e-3", "got 'a,b': numbers alone"),
    ("compare good.csv --epsilons -1 --delta 1e-3", "--epsilons must be positive"),
    ("schema good.csv --names a,b,c", "looks like names of columns: leave out --names"),
    ("schema good.csv --ignore ill", "must name different columns"),
    ("schema good.csv --rename sex=x", "rename must have names of single columns"),
    ("SILO --ledger used.json --any-plan", "study.toml must be TOML, got Expected '='"),
]


@for_each(("text", "said"), COMMANDS)
def test_wrong_commands_name_the_option_and_the_cure(capsys, monkeypatch, made, text, said):
    monkeypatch.chdir(made)
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    words = {"FIT": FIT, "BUDGET": BUDGET, "SILO": SILO}
    argv = itertools.chain(*(words.get(word, [word]) for word in text.split()))
    assert said in refused(capsys, *argv)
    assert {path.name: path.read_bytes() for path in made.iterdir()} == before


rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3))
y = (X[:, 0] > 0).astype(int)
DATA = dpk.SiloData.split(X, y, 2, min_size=1, row_bound=2.0, classes=[0, 1])
ONE = dpk.Budget(epsilon=1.0, delta=1e-5)
ABC = pd.DataFrame(X, columns=list("abc"))


def having(value, of=X):
    changed = of.astype(object if isinstance(value, str) else float)
    changed.flat[4] = value
    return changed


def solve(name="gradient_descent", data=DATA, budget=ONE, **how):
    return dpk.solve(name, data, budget=budget, **how)


def split(X=X, y=y, m=1, **how):
    return dpk.SiloData.split(X, y, m, **({"row_bound": 1.0} | how))


def fit(X=X, y=y, cls=DPLogisticRegression, **how):
    return cls(**how).fit(X, y)


def column(kind, **how):
    return lambda: Column("age", kind, **how)


def schema(X):
    """Encode by a schema of an age and a sex."""
    sex = Column("sex", "category", categories=["f", "m"])
    return dpk.Schema([Column("age", "number", lo=0, hi=90), sex]).encode(X)


CALLS = [
    (lambda: dpk.Budget(epsilon="1.0", delta=1e-5), "epsilon must be a real number, got '1.0'"),
    (lambda: dpk.Budget(epsilon=True, delta=1e-5), "epsilon must be a real number, got True"),
    (lambda: dpk.Budget(epsilon=-1, delta=1e-5), "epsilon must be positive and finite"),
    (lambda: dpk.Budget(epsilon=np.nan, delta=1e-5), "epsilon must be positive and finite"),
    (lambda: dpk.Budget(epsilon=1.0, delta=60), "delta must lie strictly between 0 and 1"),
    (lambda: dpk.Budget(epsilon=1e-5, delta=1), "delta must lie strictly between 0 and 1"),
    (lambda: dpk.Budget(epsilon=1.0), "delta must be given with epsilon"),
    (lambda: dpk.solve("ridge", DATA, epsilon=1), "give budget=dpkern.Budget"),
    (lambda: solve("gradient_decent"), "did you mean 'gradient_descent'"),
    (lambda: solve(loss="logit"), "loss must be one of logistic, squared"),
    (lambda: solve(rounds=-1), "rounds must be at least 1"),
    (lambda: solve(rounds=1.5), "rounds must be an integer, got 1.5"),
    (lambda: solve(rounds=True), "rounds must be an integer, got True"),
    (lambda: solve(round=3), "did you mean 'rounds'"),
    (lambda: solve(clip=0), "clip must be positive"),
    (lambda: solve(step_size=np.nan), "step_size must be positive and finite, got nan"),
    (lambda: solve(trust="nobody"), "trust must be 'central' or 'silo' in gradient_descent"),
    (lambda: solve(rng=np.random.default_rng()), "seed must be None or an int"),
    (
        lambda: solve(data=ABC),
        r"data must be a SiloData, got DataFrame: schema\.silo_data\(frame\) makes",
    ),
    (
        lambda: dpk.solve_many("ridge", DATA, budgets=[1.0]),
        "budgets must be dpkern.Budget",
    ),
    (lambda: split(X[:, 0]), r"X must have shape \(n, n_features\), got \(60,\)"),
    (lambda: split(X[:0], y[:0]), r"X must hold records, got shape \(0, 3\)"),
    (lambda: split(having(np.inf)), r"X must be finite, .* in 1 of 60 rows \(1 in column 1\)"),
    (lambda: split("data.csv"), "X must be real numbers"),
    (lambda: split([[1, 2], [3]], [0, 1]), "X must have rows of one length, got rows of several"),
    (lambda: split(row for row in X), r"X must be an array, got a generator .*: pass list\(X\)"),
    (lambda: split(np.ma.masked_array(X, X > 2)), "X must be an array without mask"),
    (lambda: split({"age": X[:, 0]}), r"got a mapping: pass pandas.DataFrame\(X\)"),
    (lambda: split(ABC.assign(b="x")), "column 'b' of X must be numbers, got dtype"),
    (
        lambda: split(ABC.assign(b=pd.array([None] * 60, "Int64"))),
        "column 'b' of X must have no miss",
    ),
    (
        lambda: split(ABC.assign(b=pd.Timestamp(0))),
        "column 'b' of X must be numbers, .*as days since",
    ),
    (lambda: split(y=np.eye(2)[y]), r"y must have shape \(60,\), one per row of X"),
    (lambda: split(y=np.ma.masked_array(y, y > 0)), "y must be an array without mask"),
    (lambda: split(y=y.astype(str), task="regression"), "y must be real numbers for regression"),
    (lambda: split(classes=["a", "b"]), "classes must be numbers as in y, got strings"),
    *(
        (lambda pair=pair: split(task="regression", target_bound=pair), "with lo < hi, both finite")
        for pair in [(1, 0), (0, math.inf), (-math.inf, math.inf), (0, math.nan), (0.0, 5e-324)]
    ),
    (
        lambda: split(feature_range={"a": (0, 1)}),
        "got a mapping: pass a data frame, or feature_names",
    ),
    (lambda: split(seed="a"), "seed must be None, an integer of at least 0 or a Generator"),
    (lambda: split(person=y), "max_records must be given with person"),
    (lambda: train_test_split(X, y, test_fraction="a"), "test_fraction must be a real number"),
    (lambda: train_test_split(iter(X), y), "X and y must be arrays of records"),
    (lambda: fit(having("1_0")), "column 1 of X must be numbers, got text in row 1"),
    (lambda: fit("data.csv"), "X must be a 2D array of numbers, got text"),
    (lambda: fit(epsilon="1"), "epsilon must be a real number"),
    (lambda: fit(y=y * 0), "y must hold two classes at least, got 1 class: classes= names all"),
    (lambda: fit(C=1e-99), "C must be at least"),
    (lambda: fit(cls=DPRidge, alpha=-1), "alpha must be finite and at least 0"),
    (lambda: fit(ABC).predict(ABC[["c", "b", "a"]]), "(?s)feature names .* order"),
    (lambda: PrivateSearchCV("lr", {"C": [1]}).fit(X, y), "estimator must be one of"),
    (lambda: dpk.read_csv, "module 'dpkern' has no attribute 'read_csv'"),
    (lambda: dpk.io.read_table("good.csv", target=1.5), "target must be an integer, got 1.5"),
    (lambda: dpk.io.read_table("good.csv", header="yes"), "header must be None, True or False"),
    (lambda: dpk.io.read_table("good.csv", dtype=int), "dtype must be float32 or float64"),
    (
        lambda: dpk.io.read_frame("good.csv", "s.json"),
        r"schema must be a dpkern.Schema, .*load\(PATH",
    ),
    (lambda: dpk.Schema(["age"]), "columns must be a list of dpkern.data.Column"),
    (column("numeric", lo=0, hi=1), "kind of column 'age' must be .*; did you mean 'number'"),
    (column("category", categories="abc"), "categories of column 'age' must be a list"),
    (lambda: schema(X), "X must be a data frame, a mapping of names to columns or a list of"),
    (lambda: schema({"age": [30]}), "X must have the columns of the schema, got missing 'sex'"),
    (
        lambda: schema({"age": ["30 y"], "sex": ["f"]}),
        "'age' must hold numbers, .* in row 0, from 0",
    ),
    (lambda: dpk.Accountant("model.npz"), "model.npz is another kind of file"),
    (lambda: dpk.Accountant("new", epsilon=1e-5, delta=1.0), "delta must lie strictly between"),
    (lambda: dpk.Accountant("used.json").charge("x", 3), "certificate must be a Certificate"),
    (lambda: dpk.load("cert.json"), "cert.json: not a dpkern model"),
    (lambda: dpk.load(3), "path must be a path, got int"),
    (lambda: dpk.Certificate.load("model.npz"), r"not a dpkern certificate \(no JSON text\)"),
    (lambda: dpk.Certificate.load("cut.json"), "cut.json: not a dpkern certificate"),
    (lambda: dpk.verify(ONE), r"source must be a path or .* such as result.privacy.to_dict\(\)"),
    (lambda: dpk.load("model.npz").privacy.epsilon(2), "delta must lie strictly between 0 and 1"),
    (lambda: dpk.load("model.npz").predict(X), "X must have the 2 features of the model, got 3"),
    (lambda: dpk.load("model.npz").save("."), "must be a regular file, .* got a folder"),
    (lambda: dpk.plan(DATA, 3, budget=ONE, row_bound=1.0), "n must be an integer, got SiloData"),
    (lambda: dpk.plan(60, 3, budget=1.0, row_bound=1.0), "budget must be dpkern.Budget"),
    (
        lambda: dpk.select([], DATA, solver="ridge", budget=ONE),
        "candidates must be a list of dicts",
    ),
    (lambda: dpk.select([{"clp": 1}], DATA, solver="ridge", budget=ONE), "did you mean 'clip'"),
    (
        lambda: dpk.kernels.glm_gradient(X, X[0], loss="logistic", clip=1.0),
        "data must be a SiloData",
    ),
    (lambda: dpk.kernels.glm_norms(X), "data must be a SiloData, got ndarray"),
    (lambda: dpk.kernels.glm_gradient(DATA, X[0], loss="x", clip=1.0), "loss must be one of"),
    (lambda: dpk.kernels.prox(X[0], X[0], 1.0), "name must be one of l1"),
    (lambda: dpk.kernels.clip_and_sum(X, clip=-1.0), "clip must be positive"),
    (lambda: L1("0.1"), "strength must be a real number"),
    (lambda: dpk.MLP(hidden=3), "hidden must be a sequence of sizes, got 3"),
]


@pytest.mark.filterwarnings("ignore:A certificate", "ignore:scales")
@for_each(("call", "said"), CALLS, ids=[said[:40] for _, said in CALLS])
def test_wrong_calls_name_the_argument_and_the_cure(monkeypatch, made, call, said):
    monkeypatch.chdir(made)
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    with pytest.raises((TypeError, ValueError, OSError, AttributeError), match=said):
        call()
    assert {path.name: path.read_bytes() for path in made.iterdir()} == before
