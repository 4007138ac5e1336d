"""A silo of tests as a process: takes part in one study after the other over Flower."""

import sys

import numpy as np
from studies import SEED, identities, records_of, study_of, wisconsin

from dpkern.federated.flower import FlowerLink
from dpkern.federated.silo import take_part

if __name__ == "__main__":
    address, place, silos, trusts, out = sys.argv[1:]
    j, data, models = int(place), wisconsin(int(silos)), []
    for trust in trusts.split(","):
        study = study_of(data, trust)
        how = {"insecure": True, "deadline": 60.0, "join_deadline": 90.0}
        with FlowerLink(f"s{j}", address, **how) as link:
            result = take_part(
                study,
                f"s{j}",
                records_of(study, data, j),
                link,
                identities(data.m)[j],
                accountant=None,
                rng=SEED,
                n_threads=1,
            )
        models.append(np.append(result.coef, result.intercept))
    np.save(out, models)
