"""What all parties of a study know before it begins, as people wrote it down in study.toml.

Nothing in it is secret, and nothing in it may come from the records, but the silos' numbers of
records, which are public. Every silo has its own copy, and takes nothing of it from others: silos
with copies that differ in more than the coordinator's address have different digests, and never
begin a session.

    name = "three hospitals"
    trust = "central"                # sums over silos; "silo": every silo's message has its noise
    colluding = 1                    # silos that may pool what they know with the coordinator

    [data]
    schema = "schema.json"           # or the keys below, those of SiloData
    # model = "model.npz"            # of held-out records, on which it is evaluated
    # features = ["age", "dose"]     # or n_features = 123
    # task = "classification"
    # classes = ["<=50K", ">50K"]
    # intercept = true
    # row_bound = 1.0
    # feature_range = [[17, 0], [90, 5]]
    # sparse = true                  # features are in CSR, in every silo

    [coordinator]
    address = "127.0.0.1:9092"
    certificates = "ca.crt"

    [[silos]]
    name = "north"
    records = 1200
    key = "public key in base64"     # `dpkern federation keys` prints it

Paths are relative to the folder of study.toml.
"""

import base64
import hashlib
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from dpkern._json import digest, encode
from dpkern._numbers import count, refuse_unknown
from dpkern.data.frames import column_names, refuse_other_names
from dpkern.data.schema import Schema
from dpkern.data.silo_data import SiloData
from dpkern.data.validation import RowOptions, csr_of, has_width_read, is_sparse
from dpkern.solvers import SolverResult, load

if TYPE_CHECKING:
    from dpkern.federated.masking import Roster

_OPTIONS = ("intercept", "row_bound", "target_bound", "feature_range", "task", "classes")
_DATA = ("schema", "model", "features", "n_features", "sparse", *_OPTIONS)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


def fingerprint(content: bytes) -> str:
    """Return 125 bits of the SHA-256, for people to compare: five groups of letters and digits.

    Shorter ones could be met by trying: who writes a study could make two of one fingerprint.
    """
    text = base64.b32encode(hashlib.sha256(content).digest()).decode().lower()
    return "-".join(text[i : i + 5] for i in range(0, 25, 5))


def checked_name(name: object) -> str:
    """Return a silo's name, or raise ValueError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"name must be at most 63 letters, digits, - and _ of ASCII, got {name!r}")
    return name


@dataclass(frozen=True)
class Silo:
    """A silo's name, its public number of records and the public key of its identity."""

    name: str
    records: int
    key: bytes

    def __post_init__(self) -> None:
        checked_name(self.name)
        count("records", self.records)
        if not isinstance(self.key, bytes) or len(self.key) != 32:
            raise ValueError(
                f"key of silo {self.name!r} must be an Ed25519 public key, the 44 characters of "
                "base64 that `dpkern federation keys` prints, got another"  # perhaps a private one
            )

    @property
    def fingerprint(self) -> str:
        """Short form of the key, which the silo's people can read to others."""
        return fingerprint(self.key)


@dataclass(frozen=True, eq=False)
class Study:
    """The public description of a study; `Study.read` makes one from study.toml.

    Parameters
    ----------
    name : str
    silos : tuple of Silo
        At least two, in the order of all sums and messages, with distinct names and keys.
    trust : {"central", "silo"}
    colluding : int or None
        With central trust t, the number of silos that may pool what they know with whoever sees
        the sums: 0 to m - 2. A sum hides something only if at least two silos are honest, and with
        m - 1 colluding ones "silo" has the same noise. All silos see the sums, and a silo that
        subtracts its own part of one is a coalition of t = 1; 0 protects against the coordinator
        and against strangers alone. None with trust "silo", which relies on no other silo.
    options : RowOptions
        The arguments of `SiloData` that describe rows.
    n_features : int
    sparse : bool, default=False
        Whether every silo has its features in CSR.
    address : str, optional
        HOST:PORT of the coordinator.
    certificates : Path, optional
        Of the authority that has signed the coordinator's certificate.
    model : SolverResult, optional
        What the study evaluates on held-out records, in place of a fit.
    """

    name: str
    silos: tuple[Silo, ...]
    trust: Literal["central", "silo"]
    colluding: int | None
    options: RowOptions
    n_features: int
    sparse: bool = False
    address: str | None = None
    certificates: Path | None = None
    model: SolverResult | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ValueError(f"name must be a text that is not empty, got {self.name!r}")
        m = len(self.silos)
        if m < 2:
            raise ValueError(f"silos must be at least 2, got {m}")
        if len({silo.name.casefold() for silo in self.silos}) < m:
            raise ValueError("silos must have distinct names, in small letters too, got one twice")
        if len({silo.key for silo in self.silos}) < m:
            raise ValueError("silos must have distinct keys, got one twice")
        if self.trust not in ("central", "silo"):
            raise ValueError(f"trust must be 'central' or 'silo', got {self.trust!r}")
        if self.trust == "silo" and self.colluding is not None:
            raise ValueError(
                "colluding must be left out where trust is 'silo', as a silo's message has all of "
                f"its noise, got {self.colluding!r}"
            )
        if self.trust == "central":
            if self.colluding is None:
                raise ValueError("colluding must be stated where trust is 'central', got nothing")
            if count("colluding", self.colluding, 0) > m - 2:
                raise ValueError(
                    f"colluding must be at most {m - 2} for {m} silos, as a sum hides nothing with "
                    f"fewer than 2 honest ones, got {self.colluding}: trust = 'silo' needs none"
                )
        if self.address is not None and not _is_address(self.address):
            raise ValueError(f"address must be HOST:PORT, got {self.address!r}")
        if not isinstance(self.sparse, bool):
            raise TypeError(f"sparse must be true or false, got {self.sparse!r}")
        count("n_features", self.n_features)
        try:
            _ = self.described  # validates the options
        except (TypeError, ValueError) as error:
            raise type(error)(f"[data]: {error}") from None

    def __repr__(self) -> str:
        trust = self.trust if self.colluding is None else f"{self.trust}, t={self.colluding}"
        return f"Study({self.name!r}, {len(self.silos)} silos, {trust}, d={self.described.d})"

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read study.toml.

        Raises
        ------
        TypeError, ValueError
            When the file is no TOML, a key is unknown or missing, or a value not as described. The
            message names file, table and key.
        OSError
            When the file, or the schema that it names, cannot be read.
        """
        path = Path(path)
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:  # no TOML, or no UTF-8
            raise ValueError(f"{path} must be TOML, got {error}") from None
        try:
            return cls._from(values, path.parent)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{path}: {error}") from None

    @classmethod
    def _from(cls, values: Mapping[str, Any], folder: Path) -> Self:
        needed = ("name", "trust", "data", "silos")
        _refuse_keys("the study", values, needed, ("colluding", "coordinator"))
        tables = values["silos"]
        if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
            raise TypeError("silos must be tables [[silos]], got others")
        silos = [_at(f"[[silos]] {i}", _silo, t) for i, t in enumerate(tables, 1)]
        described = _at("[data]", _data, values["data"], folder)
        reached = _at("[coordinator]", _coordinator, values.get("coordinator"), folder)
        rest: Any = {key: values.get(key) for key in ("name", "trust", "colluding")}
        return cls(silos=tuple(silos), **rest, **described, **reached)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the silos."""
        return tuple(silo.name for silo in self.silos)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of records of the silos."""
        return tuple(silo.records for silo in self.silos)

    def check_solver(self, solver: str) -> None:
        """Raise ValueError unless a plan evaluates the study's model, or fits where it has none."""
        if (solver == "evaluate") != (self.model is not None):
            cure = "fit models, or state [data] model" if self.model is None else "evaluate it"
            stated = "no model" if self.model is None else "a model"
            raise ValueError(f"the study states {stated}, got a plan of {solver!r}: {cure}")

    @property
    def roster(self) -> "Roster":
        """Names and keys of the silos, for a session."""
        from dpkern.federated.masking import Roster

        return Roster({silo.name: silo.key for silo in self.silos})

    @cached_property
    def described(self) -> SiloData:
        """A data set of one record of zeros that is otherwise as every silo's."""
        from scipy.sparse import csr_array

        shape, options = (1, self.n_features), self.options
        classes = options.get("classes")
        y = [0.0] if classes is None else np.asarray(classes).ravel()[:1]
        X = csr_array(shape, dtype=np.float64) if self.sparse else np.zeros(shape)
        return SiloData(X, y, [0, 1], **options)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that parties must agree on, which is all but how to reach one another."""
        data = self.described
        content = {
            "dpkern_study": 1,
            "name": self.name,
            "trust": self.trust,
            "colluding": self.colluding,
            "silos": [[silo.name, silo.records, silo.key.hex()] for silo in self.silos],
            "n_features": self.n_features,
            "sparse": self.sparse,
            "schema": None if data.schema is None else data.schema.to_dict(),
            "target_middle": data.transform.target_middle,
            **{key: getattr(data, key) for key in (*_OPTIONS, "feature_names")},
            **({} if self.model is None else {"model": self.model.digest}),
        }
        return digest(encode(content))

    @property
    def fingerprint(self) -> str:
        """Short form of the digest, which people compare by telephone (`fingerprint`)."""
        return fingerprint(self.digest.encode())

    def silo_data(self, name: str, X: Any, y: ArrayLike | None = None) -> SiloData:
        """Return a silo's own records as the study describes them.

        Parameters
        ----------
        name : str
        X : array_like, CSR matrix or data frame
            Features; with a schema raw records, which have their labels.
        y : array_like, optional
            Labels or targets, without a schema.

        Raises
        ------
        TypeError, ValueError
            When the records are not those that the study describes. No message has a value.
        """
        if name not in self.names:
            raise ValueError(f"name must be one of {', '.join(self.names)}, got {name!r}")
        schema = self.described.schema
        if schema is not None:
            schema.check_values(X)
            X, y = schema.encode(X, sparse_output=self.sparse), schema.labels(X)
        elif y is None:
            raise TypeError("y must be the labels or targets of the records, got None")
        refuse_other_names(column_names(X), self.described.feature_names)
        if is_sparse(X) != self.sparse:
            form = "CSR" if self.sparse else "an array or data frame"
            raise TypeError(f"X must be {form} in this study, whose sparse is {self.sparse}")
        if has_width_read(X) and X.shape[1] <= self.n_features:
            X = csr_of(X.data, X.indices, X.indptr, (X.shape[0], self.n_features))
        expected = (self.sizes[self.names.index(name)], self.n_features)
        if np.shape(X) != expected:
            raise ValueError(
                f"X of silo {name!r} must have shape {expected} as the study says, got "
                f"{np.shape(X)}"
            )
        return SiloData.from_silos([(X, y)], **self.options)


def _at(where: str, make: Callable[..., Any], table: Any, *rest: Any) -> Any:
    """Make a thing of a table, and name the table in errors."""
    try:
        if table is not None and not isinstance(table, dict):
            raise TypeError(f"must be a table, got {table!r}")
        return make(table, *rest)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{where}: {error}") from None


def _refuse_keys(
    where: str, given: Mapping[str, Any], needed: tuple[str, ...], others: tuple[str, ...] = ()
) -> None:
    refuse_unknown(where, given, (*needed, *others))
    missing = [key for key in needed if key not in given]
    if missing:
        raise ValueError(f"{where} must have the key {missing[0]!r}, got none")


def _silo(table: dict[str, Any]) -> Silo:
    _refuse_keys("a silo", table, ("name", "records", "key"))
    try:
        key = base64.b64decode(table["key"], validate=True)
    except (TypeError, ValueError):
        key = b""
    return Silo(table["name"], table["records"], key)


def _coordinator(table: dict[str, Any] | None, folder: Path) -> dict[str, Any]:
    if table is None:
        return {}
    _refuse_keys("the table", table, ("address",), ("certificates",))
    file = table.get("certificates")
    if file is not None and not isinstance(file, str):
        raise TypeError(f"certificates must be the path of a file, got {file!r}")
    return {"address": table["address"], "certificates": None if file is None else folder / file}


def _data(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    if "schema" in table:
        _refuse_keys("a table with a schema, which states all else,", table, ("schema",))
        return _of_schema(Schema.load(_path("schema", table, folder)))
    if "model" in table:
        model = load(_path("model", table, folder))
        more = () if model.schema is not None else ("sparse",)
        _refuse_keys("a table with a model, which states all else,", table, ("model",), more)
        return _of_model(model, table.get("sparse", False)) | {"model": model}
    _refuse_keys("the table", table, ("task",), _DATA)
    if ("features" in table) == ("n_features" in table):
        keys = "schema, model, features and n_features"
        raise ValueError(f"the table must have one of the keys {keys}")
    if table["task"] != "regression" and "classes" not in table:
        raise ValueError("the table must have the key classes, the public labels, got none")
    names = table.get("features")
    if names is not None and (not isinstance(names, list) or not names):
        raise TypeError(f"features must be a list of names, got {names!r}")
    options: Any = {key: table[key] for key in _OPTIONS if key in table}
    return {
        "n_features": table["n_features"] if names is None else len(names),
        "sparse": table.get("sparse", False),
        "options": options | {"feature_names": names},
    }


def _path(key: str, table: dict[str, Any], folder: Path) -> Path:
    if not isinstance(table[key], str):
        raise TypeError(f"{key} must be the path of a file, got {table[key]!r}")
    return folder / table[key]


def _of_model(model: SolverResult, sparse: object) -> dict[str, Any]:
    """Return what describes the records that a model is evaluated on."""
    if model.schema is not None:
        return _of_schema(model.schema)
    map_, labels = model.transform, model.classes
    options: Any = {"feature_names": model.feature_names, "task": "regression"}
    if labels is not None:
        task = "classification" if len(labels) == 2 else "multiclass"
        options |= {"task": task, "classes": labels.tolist()}
    if map_.scale is not None:  # with room for the rounding of the map
        middle = np.divide(0.0 if map_.shift is None else np.negative(map_.shift), map_.scale)
        half = (1.0 + 1e-9) / np.asarray(map_.scale)
        options["feature_range"] = middle - half, middle + half
    return {"n_features": map_.n_features, "sparse": sparse, "options": options}


def _of_schema(schema: Schema) -> dict[str, Any]:
    for column in schema.columns:
        if column.kind in ("silo", "person", "weight", "exposure"):
            raise ValueError(
                f"schema must have no {column.kind} column in a study, which takes records of a "
                f"silo as they are, got {column.name!r}: give it the kind 'ignore'"
            )
    options = schema.options()
    return {"n_features": schema.n_features, "sparse": schema.sparse, "options": options}


def _is_address(address: object) -> bool:
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host.replace(":", " ")
    named = bool(bare) and not re.search(r"[\s/]", bare)
    return named and re.fullmatch("[0-9]{1,5}", port) is not None and int(port) < 65536
