"""``dpkern example``: made-up records, their schema and the commands of a first study."""

import argparse
import csv
import io
from pathlib import Path

import numpy as np

from dpkern._files import write_new
from dpkern.cli._code_book import read_columns
from dpkern.cli._output import print_lines
from dpkern.data.schema import MISSING, draft_of, schema_text

HELP = "write made-up records, a schema and the commands of a first study into a folder"
_CODE_BOOK = """\
name,kind,lo,hi,categories,missing
age,number,18,100,,
sex,category,,,F|M,
ward,category,,,surgery|medicine|geriatrics,
creatinine,number,20,300,,90
stays,number,0,8,,
readmitted,target,,,no|yes,
"""
COMMANDS = """\
dpkern schema train.csv --code-book code_book.csv --out schema.json
dpkern ledger study.ledger --epsilon 2 --delta 1e-5
dpkern describe train.csv --schema schema.json --epsilon 0.3 --delta 1e-6 \\
    --cross ward:readmitted --ledger study.ledger --out table.csv
dpkern fit train.csv --schema schema.json --epsilon 1 --delta 1e-6 --ledger study.ledger \\
    --out model.npz --certificate certificate.json
dpkern evaluate model.npz test.csv --epsilon 0.3 --delta 1e-6 --ledger study.ledger
dpkern predict model.npz new.csv --probabilities --out predictions.csv
dpkern verify certificate.json model.npz
"""
_SIZES = {"train.csv": 20_000, "test.csv": 8_000, "new.csv": 10}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="a new folder, or an empty one")


def run(arguments: argparse.Namespace) -> None:
    folder = Path(arguments.folder)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ValueError(f"FOLDER must be new or empty, got {folder}, which holds files")
    files = {name: _records(n, seed) for seed, (name, n) in enumerate(_SIZES.items())}
    files |= {"code_book.csv": _CODE_BOOK, "commands.sh": f"set -e\n{COMMANDS}"}
    for name, text in files.items():
        write_new(folder / name, text.encode(), 0o644)
    columns = read_columns(str(folder / "code_book.csv"))
    schema = draft_of(columns, missing=MISSING, header=True, sep=None, comment=None)
    write_new(folder / "schema.json", schema_text(schema).encode(), 0o644)
    names = ", ".join([*files, "schema.json"])
    print_lines([("files", f"{names} in {folder}: records of people who never were")])
    print(f"\ncd {folder}   # and, one after the other (or: sh commands.sh)\n{COMMANDS}", end="")


def _records(n: int, seed: int) -> str:
    """Return made-up records as CSV; those to predict have no label."""
    rng = np.random.default_rng(seed)
    age = rng.normal(63.0, 16.0, n).clip(18, 100).round().astype(int)
    sex, stays = rng.choice(["F", "M"], n), rng.poisson(1.2, n).clip(0, 8)
    ward = rng.choice(["surgery", "medicine", "geriatrics"], n, p=[0.4, 0.4, 0.2])
    creatinine = np.exp(rng.normal(4.5, 0.35, n)).clip(20, 300).round().astype(int)
    z = -2.5 + 0.04 * (age - 60) + 0.8 * stays + 0.8 * (ward == "geriatrics")
    is_readmitted = rng.random(n) < 1.0 / (1.0 + np.exp(-z - 0.01 * (creatinine - 90)))
    readmitted = np.where(is_readmitted, "yes", "no")
    measured = np.where(rng.random(n) < 0.1, "", creatinine.astype(str))
    columns = [age, sex, ward, measured, stays, readmitted]
    names = [line.partition(",")[0] for line in _CODE_BOOK.splitlines()[1:]]
    if n == _SIZES["new.csv"]:
        names, columns = names[:-1], columns[:-1]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([names, *zip(*columns, strict=True)])
    return text.getvalue()
