"""The file of a study, keys and certificates: what is refused, and what is read back."""

import argparse
import base64
import copy
import datetime
import ipaddress
import os
import pickle
import random
import re
import socket
import ssl
import stat
import threading
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from cases import for_each
from makers import assert_refused
from scipy.sparse import csr_array

import dpkern as dpk
from dpkern.cli import silo
from dpkern.data import Column, Schema, is_sparse
from dpkern.federated.proposal import Proposal
from dpkern.federated.study import Silo, Study
from dpkern.io import read_table

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from studies import identities, study_of, wisconsin

from dpkern.federated import keys
from dpkern.federated.silo import take_part

KEYS = [base64.b64encode(bytes([i]) * 32).decode() for i in range(1, 6)]
TEXT = f"""
name = "three hospitals"
trust = "central"
colluding = 1

[data]
features = ["age", "dose"]
task = "classification"
classes = ["no", "yes"]
intercept = true
feature_range = [[17, 0], [90, 5.5]]

[coordinator]
address = "127.0.0.1:9092"
certificates = "ca.crt"

[[silos]]
name = "north"
records = 4
key = "{KEYS[0]}"

[[silos]]
name = "south"
records = 5
key = "{KEYS[1]}"

[[silos]]
name = "east"
records = 6
key = "{KEYS[2]}"
"""
SCHEMA = Schema(
    [
        Column("age", "number", lo=17, hi=90),
        Column("sex", "category", categories=["f", "m"]),
        Column("ill", "target", classes=["no", "yes"]),
        Column("note", "ignore"),
    ]
)
DATA = re.search(r"\[data\].*?(?=\n\n)", TEXT, re.DOTALL)[0]


@pytest.fixture
def read(tmp_path):
    def of(text):
        path = tmp_path / "study.toml"
        path.write_text(text, encoding="utf-8")
        return Study.read(path)

    return of


def changed(old, new, text=TEXT):
    assert old in text
    return text.replace(old, new, 1)


def test_a_study_is_what_its_file_says(read, tmp_path):
    study = read(TEXT)
    assert (study.name, study.trust, study.colluding) == ("three hospitals", "central", 1)
    assert study.names == ("north", "south", "east")
    assert study.sizes == (4, 5, 6)
    assert study.address == "127.0.0.1:9092"
    assert study.certificates == tmp_path / "ca.crt"
    assert study.roster.names == study.names
    assert study.roster.keys["south"] == b"\2" * 32
    data = study.described
    assert data.feature_names == ("age", "dose")
    assert (data.n, data.m, data.d, data.intercept, data.task) == (1, 1, 3, True, "classification")
    assert data.classes.tolist() == ["no", "yes"]
    np.testing.assert_array_equal(data.feature_range[1], [90.0, 5.5])
    assert repr(study) == "Study('three hospitals', 3 silos, central, t=1, d=3)"


def test_a_schema_describes_the_data(read, tmp_path):
    SCHEMA.save(tmp_path / "schema.json")
    study = read(changed(DATA, '[data]\nschema = "schema.json"'))
    assert study.described.schema == SCHEMA
    assert study.described.row_bound == SCHEMA.proven_bound
    assert study.n_features == 3
    frame = pd.DataFrame(
        {"age": [20, 30, 40, 50], "sex": list("fmfm"), "ill": ["no", "yes"] * 2, "note": "x"}
    )
    data = study.silo_data("north", frame)
    np.testing.assert_array_equal(data.X, SCHEMA.encode(frame))
    assert data.y.tolist() == [-1.0, 1.0, -1.0, 1.0]
    with pytest.warns(dpk.data.OutsideWarning, match="1 of 4 in column 'sex'"):
        study.silo_data("north", frame.assign(sex=list("fmfx")))
    assert (data.row_bound, data.schema) == (SCHEMA.proven_bound, SCHEMA)


@pytest.mark.parametrize("kind", ["silo", "person", "weight", "exposure"])
def test_a_schema_with_more_than_records_is_refused(read, tmp_path, kind):
    bounds = {"lo": 1, "hi": 2} if kind in ("weight", "exposure") else {}
    Schema([*SCHEMA.columns[:3], Column("who", kind, **bounds)]).save(tmp_path / "schema.json")
    with pytest.raises(ValueError, match=f"must have no {kind} column in a study.*'ignore'"):
        read(changed(DATA, '[data]\nschema = "schema.json"'))


WRONG = [
    (
        "colluding = 1",
        "coluding = 1",
        "the study has the unknown key 'coluding'; did you mean 'coll",
    ),
    ("colluding = 1", "", "colluding must be stated where trust is 'central'"),
    ("colluding = 1", "colluding = 2", "colluding must be at most 1 for 3 silos"),
    ("colluding = 1", "colluding = -1", "colluding must be at least 0, got -1"),
    ("colluding = 1", "colluding = 1.0", "colluding must be an integer, got 1.0"),
    ("colluding = 1", "colluding = true", "colluding must be an integer, got True"),
    ('"central"', '"silo"', "colluding must be left out where trust is 'silo'"),
    ('"central"', '"shuffle"', "trust must be 'central' or 'silo', got 'shuffle'"),
    ('"three hospitals"', '" "', "name must be a text that is not empty"),
    ('"three hospitals"', "", "must be TOML, got Invalid value"),
    ("[data]", "[daten]", "the study has the unknown key 'daten'; did you mean 'data'"),
    (DATA, "", "the study must have the key 'data'"),
    ("[data]", "[[data]]", r"\[data\]: must be a table"),
    ("intercept", "intersept", r"\[data\]: .*unknown key 'intersept'; did you mean 'intercept'"),
    ("intercept = true", "intercept = 1", r"\[data\]: intercept must be True or False"),
    ('features = ["age", "dose"]', "", r"\[data\]: .* one of the keys schema, model, feat"),
    ('features = ["age", "dose"]', "n_features = 0", "n_features must be at least 1"),
    ('"dose"]', '"dose"]\nn_features = 2', r"\[data\]: .* one of the keys schema, model, feat"),
    ('"dose"]', '"dose"]\nschema = "s.json"', r"\[data\]: .*schema.* unknown key 'features'"),
    ('"dose"]', '"age"]', r"\[data\]: feature_names must be 2 distinct names"),
    ('"dose"]', '"dose"]\nrow_bound = 0', r"\[data\]: row_bound must be positive"),
    ('"dose"]', '"dose"]\ntarget_bound = 1', r"\[data\]: target_bound must be None where task"),
    ('"dose"]', '"dose"]\nsparse = 1', "sparse must be true or false, got 1"),
    ('"classification"', '"regression"', r"\[data\]: classes must be None where task is 'regr"),
    ('"classification"', '"classes"', r"\[data\]: task must be 'classification', "),
    ('task = "classification"', "", r"\[data\]: the table must have the key 'task'"),
    ('classes = ["no", "yes"]', "", r"\[data\]: .*must have the key classes, the public labels"),
    ('["no", "yes"]', '["no"]', r"\[data\]: classes must have 2 to"),
    ('["no", "yes"]', '["no", "no"]', r"\[data\]: classes must hold every label once"),
    ("90, 5.5", "90, 0", r"\[data\]: feature_range must be finite .* for feature 'dose'"),
    ("90, 5.5", "90", r"\[data\]: feature_range hi must have 2 entries, got 1"),
    ('address = "127.0.0.1:9092"', "", r"\[coordinator\]: .* must have the key 'address'"),
    ('"127.0.0.1:9092"', '"http://a:1"', "address must be HOST:PORT"),
    (":9092", ":65536", "address must be HOST:PORT"),
    (":9092", "", "address must be HOST:PORT"),
    ('"ca.crt"', "7", r"\[coordinator\]: certificates must be the path of a file"),
    ("certificates", "certificate", r"\[coordinator\]: .*did you mean 'certificates'"),
    ("records = 5", "records = 0", r"\[\[silos\]\] 2: records must be at least 1, got 0"),
    ("records = 5", "records = 5.0", r"\[\[silos\]\] 2: records must be an integer"),
    ("records = 5", "", r"\[\[silos\]\] 2: a silo must have the key 'records'"),
    ("records = 5", "recrods = 5", r"\[\[silos\]\] 2: .*did you mean 'records'"),
    ('"south"', '"../south"', r"\[\[silos\]\] 2: name must be at most 63 letters"),
    ('"south"', '"North"', "silos must have distinct names"),
    (KEYS[1], KEYS[0], "silos must have distinct keys"),
    (KEYS[1], KEYS[1][:-2], r"\[\[silos\]\] 2: key of silo 'south' must be an Ed25519 public key"),
    (KEYS[1], "\u00e4" * 44, r"\[\[silos\]\] 2: key of silo 'south' must be an Ed25519 public key"),
    (f'"{KEYS[1]}"', "3", r"\[\[silos\]\] 2: key of silo 'south' must be an Ed25519 public key"),
]


@for_each(("old", "new", "said"), WRONG)
def test_what_is_wrong_is_named_with_file_table_and_key(read, old, new, said):
    with pytest.raises((TypeError, ValueError), match=said) as caught:
        read(changed(old, new))
    assert "study.toml" in str(caught.value)


def test_one_silo_is_no_study(read):
    with pytest.raises(ValueError, match="silos must be at least 2, got 1"):
        read(TEXT[: TEXT.index('[[silos]]\nname = "south"')])
    with pytest.raises(TypeError, match=r"silos must be tables \[\[silos\]\]"):
        read(TEXT[: TEXT.index("[[silos]]")] + "[silos]\nname = 'north'\n")


def test_two_silos_have_nobody_to_collude(read):
    two = TEXT[: TEXT.index('[[silos]]\nname = "east"')]
    assert read(changed("colluding = 1", "colluding = 0", two)).colluding == 0
    assert_refused("at most 0 for 2 silos", read, two)


def test_what_is_pasted_for_a_key_is_not_shown(read):
    private = base64.b64encode(b"\xab" * 48).decode()
    assert private not in assert_refused("got another", read, changed(KEYS[1], private))


def test_files_that_cannot_be_read_are_named(read, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"study\.toml"):
        Study.read(tmp_path / "study.toml")
    (tmp_path / "study.toml").write_bytes(b"name = '\xff'")
    assert_refused(r"study\.toml must be TOML", Study.read, tmp_path / "study.toml")
    with pytest.raises(FileNotFoundError, match=r"schema\.json"):
        read(changed(DATA, '[data]\nschema = "schema.json"'))


# ----------------------------------------------------------------------------- digest

OTHERS = [
    ("three", "four"),
    ("colluding = 1", "colluding = 0"),
    ('"age"', '"years"'),
    ('features = ["age", "dose"]', "n_features = 2"),
    ('"no", "yes"', '"yes", "no"'),
    ("intercept = true", "intercept = false"),
    ("intercept = true", "intercept = true\nrow_bound = 1.0"),
    ("intercept = true", "intercept = true\nsparse = true"),
    ("[17, 0]", "[18, 0]"),
    ("feature_range = [[17, 0], [90, 5.5]]", ""),
    ("records = 4", "records = 5"),
    ('"north"', '"west"'),
    (KEYS[0], KEYS[3]),
]


@for_each(("old", "new"), OTHERS)
def test_studies_that_differ_have_different_digests(read, old, new):
    assert read(TEXT).digest != read(changed(old, new)).digest


def test_the_order_of_silos_counts(read):
    study = read(TEXT)
    assert replace(study, silos=study.silos[::-1]).digest != study.digest


def test_how_parties_reach_one_another_and_spelling_do_not_count(read):
    digest = read(TEXT).digest
    assert re.fullmatch("sha256:[0-9a-f]{64}", digest)
    for old, new in (
        ("127.0.0.1:9092", "[::1]:9093"),
        ('certificates = "ca.crt"', ""),
        ("17, 0", "17.0, 0.0"),
        ("[data]", "# a comment\n[data]"),
        (
            'task = "classification"\nclasses = ["no", "yes"]',
            'classes = ["no", "yes"]\ntask = "classification"',
        ),
    ):
        assert read(changed(old, new)).digest == digest


def test_the_content_of_the_schema_counts(read, tmp_path):
    text, digests = changed(DATA, '[data]\nschema = "schema.json"'), set()
    for hi in (90, 91):
        replace(SCHEMA, columns=[Column("age", "number", lo=17, hi=hi), *SCHEMA.columns[1:]]).save(
            tmp_path / "schema.json"
        )
        digests.add(read(text).digest)
    assert len(digests) == 2
    (tmp_path / "other.json").write_bytes((tmp_path / "schema.json").read_bytes())
    assert read(changed("schema.json", "other.json", text)).digest in digests


# ------------------------------------------------------------------------ a silo's records


def test_a_silos_records_are_as_the_study_describes_them(read):
    study = read(TEXT)
    X, y = np.arange(8.0).reshape(4, 2), ["no", "no", "no", "no"]
    data = study.silo_data("north", X, y)
    expected = dpk.SiloData(X, y, [0, 4], **study.options)
    np.testing.assert_array_equal(data.scale, expected.scale)
    assert data.y.tolist() == [-1.0] * 4
    assert (data.row_bound, data.feature_names) == (expected.row_bound, ("age", "dose"))


def test_other_records_are_refused_without_a_value(read):
    study, y = read(TEXT), ["no"] * 4
    frame = pd.DataFrame({"dose": [1.5] * 4, "age": [20.0] * 4})
    for X, labels, said in (
        (
            np.full((3, 2), 7.25),
            y[:3],
            r"silo 'north' must have shape \(4, 2\) as the study says, got",
        ),
        (np.full((4, 3), 7.25), y, r"silo 'north' must have shape \(4, 2\)"),
        (np.full((4, 2), 7.25), ["7.25"] * 4, "y must hold labels of classes only, got 4 others"),
        (np.full((4, 2), 7.25), None, "y must be the labels or targets"),
        (csr_array(np.full((4, 2), 7.25)), y, "X must be an array or data frame in this study"),
        (frame, y, "X must have the columns .* in their order: column 0 must be .age."),
    ):
        with pytest.raises((TypeError, ValueError), match=said) as caught:
            study.silo_data("north", X, labels)
        assert "7.25" not in str(caught.value)
    study.silo_data("north", frame[["age", "dose"]], y)
    sparse = read(changed("intercept = true", "intercept = true\nsparse = true"))
    assert sparse.silo_data("north", csr_array(np.ones((4, 2))), y).shift is None
    with pytest.raises(TypeError, match="X must be CSR in this study"):
        sparse.silo_data("north", np.ones((4, 2)), y)
    with pytest.raises(ValueError, match="name must be one of north, south, east, got 'west'"):
        study.silo_data("west", np.ones((4, 2)), y)


def test_columns_go_by_place_only_where_that_is_stated(read, tmp_path):
    path = tmp_path / "north.csv"
    path.write_text("20,1.5,no\n30,2.5,yes\n40,3.5,no\n50,4.5,yes\n")
    given = {"data": str(path), "name": "north", "header": None, "sep": None}
    given |= {"target": None, "silo_column": None, "person": None}
    with pytest.raises(
        ValueError, match="or say header=False if the features are, in order, 'age'"
    ):
        silo._records(read(TEXT), argparse.Namespace(**given))
    stated = silo._records(read(TEXT), argparse.Namespace(**given | {"header": False}))
    path.write_text(f"age,dose,ill\n{path.read_text()}")
    named = silo._records(read(TEXT), argparse.Namespace(**given))
    np.testing.assert_array_equal(stated.X, named.X)
    path.write_text(path.read_text().replace("age,dose", "dose,age"))
    with pytest.raises(ValueError, match="column 0 must be 'age', got 'dose'"):
        silo._records(read(TEXT), argparse.Namespace(**given))


@for_each("rows", ["1 8:1", "1 7:1", "1 1:1 2:1 3:1 4:1 5:1 6:1 7:1 8:1"])
def test_libsvm_records_have_the_numbers_of_the_study(tmp_path, rows):
    silos = (Silo("a", 2, b"a" * 32), Silo("b", 3, b"b" * 32))
    options = {"task": "classification", "classes": [-1, 1]}
    path = tmp_path / "a.svm"
    path.write_text(f"{rows}\n-1 2:1\n")
    given = {"data": str(path), "name": "a", "target": None, "silo_column": None}
    given |= {"person": None, "header": None, "sep": None}
    for sparse in (True, False):
        study = Study("s", silos, "silo", None, options, 8, sparse=sparse)
        data = silo._records(study, argparse.Namespace(**given))
        assert (data.n_features, is_sparse(data.X), data.notes) == (8, sparse, ())
    table = read_table(path)
    study = Study("s", silos, "silo", None, options, 8, sparse=True)
    assert study.silo_data("a", table.X, table.y).n_features == 8
    narrow = Study("s", silos, "silo", None, options, 6, sparse=True)
    assert_refused("as the study says", narrow.silo_data, "a", table.X, table.y)


def test_other_tasks(read):
    regression = read(
        changed(
            'task = "classification"\nclasses = ["no", "yes"]',
            'task = "regression"\ntarget_bound = 2',
        )
    )
    data = regression.silo_data("north", np.ones((4, 2)), [1.0, -5.0, 0.5, 9.0])
    assert data.y.tolist() == [1.0, -2.0, 0.5, 2.0]
    digests = {regression.digest}
    for pair in ([-2, 2], [0, 4], [996, 1000]):  # of one width
        options = regression.options | {"target_bound": pair}
        digests.add(replace(regression, options=options).digest)
    assert len(digests) == 3  # a bound is the pair around 0
    several = read(
        changed('"classification"\nclasses = ["no", "yes"]', '"multiclass"\nclasses = [3, 1, 2]')
    )
    assert several.silo_data("north", np.ones((4, 2)), [1, 1, 2, 3]).y.tolist() == [1, 1, 2, 0]


def test_a_study_made_in_code_is_validated_too():
    assert_refused("name must be at most 63 letters", Silo, "a b", 3, bytes(32))
    assert_refused("key of silo 'a' must be an Ed25519", Silo, "a", 3, bytes(31))
    silos = (Silo("a", 3, b"a" * 32), Silo("b", 3, b"b" * 32))
    options = {"task": "classification", "classes": [0, 1]}
    assert Study("s", silos, "silo", None, options, 5).described.d == 5
    with pytest.raises(ValueError, match="row_bound must be positive"):
        Study("s", silos, "silo", None, options | {"row_bound": -1.0}, 5)


# --------------------------------------------------------------------------------- keys

posix = pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_an_identity_is_read_back_and_fits_a_study(tmp_path, read):
    path = tmp_path / "north.key"
    public = keys.new_identity(path)
    identity = keys.read_identity(path)
    assert keys.public_key(identity) == public
    assert list(tmp_path.iterdir()) == [path]
    study = read(changed(KEYS[0], public))
    assert study.roster.keys["north"] == identity.public_key().public_bytes_raw()
    assert public not in repr(identity)
    with pytest.raises(TypeError):
        pickle.dumps(identity)
    assert copy.copy(identity) is not None


@posix
def test_private_keys_are_for_their_owner_alone(tmp_path):
    mask = os.umask(0)
    try:
        keys.new_identity(tmp_path / "identity")
        keys.new_node_key(tmp_path / "node")
        keys.new_certificates(tmp_path, ["localhost"])
    finally:
        os.umask(mask)
    modes = {path.name: mode(path) for path in tmp_path.iterdir()}
    private = {"identity": 0o600, "node": 0o600, "server.key": 0o600}
    assert modes == private | {"node.pub": 0o644, "server.pem": 0o644, "ca.crt": 0o644}


@posix
@for_each("wrong", [0o640, 0o604, 0o660])
def test_an_identity_that_others_can_read_is_refused(tmp_path, wrong):
    path = tmp_path / "north.key"
    keys.new_identity(path)
    path.chmod(wrong)
    with pytest.raises(PermissionError, match=f"readable by its owner alone, got mode {wrong:04o}"):
        keys.read_identity(path)


@for_each(
    "make",
    [keys.new_identity, keys.new_node_key, lambda path: keys.new_certificates(path.parent, ["a"])],
)
def test_keys_are_never_overwritten(tmp_path, make):
    path = tmp_path / "key"
    make(path)
    files = {file: file.read_bytes() for file in tmp_path.iterdir()}
    for file in files:
        others = [other for other in files if other != file]
        for other in others:
            other.unlink()
        with pytest.raises(FileExistsError, match="never overwritten"):
            make(path)
        assert {f: f.read_bytes() for f in tmp_path.iterdir()} == {file: files[file]}
        for other in others:
            other.write_bytes(files[other])


def test_a_key_that_appears_meanwhile_is_not_overwritten(tmp_path, monkeypatch):
    path = tmp_path / "key"
    monkeypatch.setattr(os.path, "lexists", lambda _: False)
    path.write_bytes(b"kept")
    with pytest.raises(FileExistsError):
        keys.new_identity(path)
    assert path.read_bytes() == b"kept"
    assert list(tmp_path.iterdir()) == [path]


def test_other_files_are_no_identity(tmp_path):
    path = tmp_path / "node"
    keys.new_node_key(path)
    keys.new_certificates(tmp_path, ["localhost"])
    for other in (path, tmp_path / "server.key"):
        assert_refused(f"{other.name} must be an Ed25519 private key", keys.read_identity, other)
    path.write_bytes(b"")
    assert_refused(r"must be an Ed25519 private key.*a damaged file", keys.read_identity, path)
    with pytest.raises(FileNotFoundError, match=r"none: no such file; `dpkern"):
        keys.read_identity(tmp_path / "none")


def test_a_key_is_that_of_its_certificate(tmp_path):
    keys.new_certificates(tmp_path, ["localhost"])
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    keys.check_key(certificate, key)
    for content in (b"", key.read_bytes()[:100]):
        key.write_bytes(content)
        with pytest.raises(ValueError, match=r"server.key must be the private key of .*server.pem"):
            keys.check_key(certificate, key)
    (other := tmp_path / "other").mkdir()
    keys.new_certificates(other, ["localhost"])
    with pytest.raises(ValueError, match=r"server.key must be the private key of .*server.pem"):
        keys.check_key(certificate, other / "server.key")


def test_node_keys_are_in_the_formats_of_flower(tmp_path):
    keys.new_node_key(tmp_path / "node")
    private = serialization.load_ssh_private_key((tmp_path / "node").read_bytes(), None)
    public = serialization.load_ssh_public_key((tmp_path / "node.pub").read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(private.curve, ec.SECP384R1)
    assert private.public_key() == public


def test_certificates_name_hosts_and_times(tmp_path):
    keys.new_certificates(tmp_path, ["silos.example.org", "10.0.0.7", "::1"], days=10)
    authority = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["silos.example.org"]
    addresses = [ipaddress.ip_address("10.0.0.7"), ipaddress.ip_address("::1")]
    assert names.get_values_for_type(x509.IPAddress) == addresses
    for certificate in (authority, server):
        valid = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        assert valid == datetime.timedelta(days=10)
        assert certificate.not_valid_before_utc < datetime.datetime.now(datetime.UTC)
    key = serialization.load_pem_private_key((tmp_path / "server.key").read_bytes(), None)
    assert key.public_key() == server.public_key()
    constraints = server.extensions.get_extension_for_class(x509.BasicConstraints)
    assert not constraints.value.ca


@for_each("hosts", [[], "localhost", [""]])
def test_certificates_need_hosts(tmp_path, hosts):
    assert_refused("hosts must be a list", keys.new_certificates, tmp_path, hosts)
    assert not list(tmp_path.iterdir())


def handshake(folder, host, trusted):
    """Connect a TLS client to a server with the certificates, on this machine."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.pem", folder / "server.key")
    client = ssl.create_default_context(cafile=trusted)
    ours, theirs = socket.socketpair()

    def answer():
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname=host) as connection:
            return connection.version()
    finally:
        ours.close()
        thread.join()


def test_certificates_are_those_of_a_strict_client(tmp_path):
    (tmp_path / "other").mkdir()
    keys.new_certificates(tmp_path, ["localhost", "127.0.0.1"])
    keys.new_certificates(tmp_path / "other", ["localhost"])
    for host in ("localhost", "127.0.0.1"):
        assert handshake(tmp_path, host, tmp_path / "ca.crt") == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|not valid for"):
        handshake(tmp_path, "example.org", tmp_path / "ca.crt")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, "localhost", tmp_path / "other" / "ca.crt")


# ------------------------------------------------------------------------------ damaged files


def damaged_ways(good, draws, flips=25):
    """Contents that a file may have when a disk or a person has damaged it."""
    for _ in range(flips):
        content, place = bytearray(good), draws.randrange(len(good))
        content[place] ^= draws.randrange(1, 256)
        yield bytes(content)
    yield from (b"", bytes(100), bytes(range(256)), good[: len(good) // 2], b"[" * 100_000)


@pytest.fixture(scope="module")
def party_files(tmp_path_factory):
    """A folder with one file of every kind that parties of a study read."""
    folder = tmp_path_factory.mktemp("files")
    keys.new_identity(folder / "own.key")
    keys.new_node_key(folder / "own.node")
    keys.new_certificates(folder, ["127.0.0.1"])
    arguments = {"rounds": 5, "trust": "central"}
    plan = Proposal("gradient_descent", dpk.Budget(epsilon=1.0, delta=1e-6), arguments)
    (folder / "plan.json").write_text(plan.to_json())
    data = dpk.datasets.load_wisconsin(m=2, intercept=True, row_bound=4.0)
    accountant = dpk.Accountant(folder / "ledger.json", epsilon=3.0, delta=1e-6)
    result = dpk.solve(
        "gradient_descent", data, budget=plan.budget, rounds=2, accountant=accountant
    )
    result.save(folder / "model.npz")
    result.privacy.save(folder / "certificate.json")
    return folder


READERS = {
    "own.key": lambda path: keys.public_key(keys.read_identity(path)),
    "own.node": keys.read_node_key,
    "own.node.pub": keys.read_node_public,
    "ca.crt": keys.read_certificates,
    "plan.json": lambda path: Proposal.read(path).to_json(),
    "ledger.json": lambda path: dpk.Accountant(path).entries,
    "model.npz": lambda path: dpk.load(path).w.tobytes(),
    "certificate.json": lambda path: dpk.Certificate.load(path).to_dict(),
}
# A flipped byte of these may give another whole file, which a party then refuses by its content.
WITHOUT_CHECK = ("own.key", "own.node", "own.node.pub", "ca.crt")


def outcome_of(read, path):
    try:
        return read(path)
    except (ValueError, FileNotFoundError) as error:
        return error


@for_each("name", READERS)
def test_damaged_files_are_named_or_harmless(party_files, name):
    path, draws = party_files / name, random.Random(3)
    good, read = path.read_bytes(), READERS[name]
    expected = read(path)
    try:
        for content in damaged_ways(good, draws):
            path.write_bytes(content)
            found = outcome_of(read, path)
            if isinstance(found, Exception):
                assert name in str(found)
            else:  # a ledger's last line may be cut off
                assert found == expected or name in WITHOUT_CHECK or good.startswith(content)
    finally:
        path.write_bytes(good)


def test_an_identity_of_another_is_refused_before_anybody_is_asked():
    study, others = study_of(wisconsin(2), colluding=0), identities(3)[1:]
    for other, got in zip(others, ("that of silo 's1'", "another"), strict=True):
        why = f"must be the private key of silo 's0' in the study, got {got}: compare"
        assert_refused(why, take_part, study, "s0", None, None, other, accountant=None)


def test_a_plan_that_would_keep_a_silo_busy_for_days_is_refused():
    budget = dpk.Budget(mu=1.0)
    Proposal("federated_gd", budget, {"rounds": 1000, "local_steps": 1000})
    for more in ({"rounds": 1_000_001}, {"rounds": 1001, "local_steps": 1000}):
        assert_refused("at most 1000000 steps together", Proposal, "federated_gd", budget, more)
