"""Studies on the Wisconsin set, shared by tests."""

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import dpkern as dpk
from dpkern.federated.study import Silo, Study

SEED = 7
NAMES = ["s0", "s1", "s2", "s3"]


def wisconsin(m=4):
    return dpk.datasets.load_wisconsin(m=m, intercept=True, row_bound=4.0)


def identities(m):
    return [Ed25519PrivateKey.from_private_bytes(bytes([j + 1]) * 32) for j in range(m)]


def study_of(data, trust="central", colluding=1, name="a test"):
    silos = tuple(
        Silo(f"s{j}", int(n), key.public_key().public_bytes_raw())
        for j, (n, key) in enumerate(zip(data.sizes, identities(data.m), strict=True))
    )
    options = {
        "intercept": True,
        "row_bound": data.row_bound,
        "task": data.task,
        "classes": list(data.classes),
        "feature_range": data.feature_range,
    }
    t = colluding if trust == "central" else None
    return Study(name, silos, trust, t, options, data.n_features)


def records_of(study, data, j):
    first, last = data.offsets[j : j + 2]
    labels = np.asarray(data.classes)[(data.y[first:last] > 0).astype(int)]
    return study.silo_data(f"s{j}", data.X[first:last], labels)
