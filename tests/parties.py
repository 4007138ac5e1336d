"""Studies whose parties are threads of one process, without masks; shared by the tests."""

import threading

import numpy as np
from local_stars import QueueStar

import dpkern as dpk
from dpkern.data.parted import held_by
from dpkern.federated.links import public_reason
from dpkern.federated.party import CoordinatorParty, SiloParty


class NoMasks:
    """Messages as they are, for tests of all but the masks."""

    def mask(self, values, number, binding):
        return values.view(np.uint64)


def own_records(data, j):
    """The records of silo j, as one silo."""
    first, last = data.offsets[j : j + 2]
    return data.part(np.arange(first, last), np.array([0, last - first]))


class Study:
    """Runs of a solver by all parties, of whom all have the same seed.

    `results` are those of the silos and, last, of the coordinator; `failures` their errors.
    """

    def __init__(self, data, *, colluding=0, seed=7, star=None, masks=NoMasks):
        self.data, self.seed, self.colluding, self.masks = data, seed, colluding, masks
        self.star = star or QueueStar([f"s{j}" for j in range(data.m)], deadline=20.0)
        self.results, self.failures = [None] * (data.m + 1), [None] * (data.m + 1)

    def _silo(self, j, name, arguments):
        try:
            with self.star.links[j] as link:
                party = SiloParty(
                    link,
                    self.masks(),
                    silo=j,
                    colluding=self.colluding,
                    opening=link.exchange(None),
                    public=dpk.NoiseStream(self.seed),
                )
                here = held_by(party, own_records(self.data, j), self.data.sizes)
                arguments = {"rng": self.seed, "n_threads": 1, **arguments}
                self.results[j] = dpk.solve(name, here, **arguments)
        except Exception as error:
            self.failures[j] = error

    def coordinate(self, name, arguments):
        party = CoordinatorParty(
            self.star,
            colluding=self.colluding,
            opening=b"opening",
            told=b"opening",
            public=dpk.NoiseStream(self.seed),
        )
        here = held_by(party, self.data, self.data.sizes)
        # Its own stream draws nothing that anybody sees.
        result = dpk.solve(name, here, **{"rng": self.seed + 1, **arguments})
        self.star.finish(party.told, self.star.silos, 10.0)
        return result

    def run(self, name, **arguments):
        m, of_silos = self.data.m, {}
        if "of_silo" in arguments:
            of_silos = arguments.pop("of_silo")
        silos = [
            threading.Thread(target=self._silo, args=(j, name, arguments | of_silos.get(j, {})))
            for j in range(m)
        ]
        for silo in silos:
            silo.start()
        try:
            self.results[m] = self.coordinate(name, arguments)
        except Exception as error:
            self.failures[m] = error
            self.star.close(public_reason(error))
        for silo in silos:
            silo.join()
        return self.results


def unmask(messages):
    """The sum of one round's messages of all silos, modulo 2^64."""
    return np.add.reduce(messages, axis=0, dtype=np.uint64).view(np.int64)
