"""A network between the parties of a study that loses connections, late and in the middle."""

import random
import selectors
import socket
import threading
from contextlib import AbstractContextManager, suppress


def free_port():
    """The number of a port of this machine that nobody listens to."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Network(AbstractContextManager):
    """A port of this machine that passes on to another one.

    Each connection lives for a random number of bytes, `life` on average, in both directions
    together: what is on its way then is lost, a question as well as an answer to one that arrived.
    Bytes arrive up to `delay` seconds late, so that connections overtake each other.

    Attributes
    ----------
    address : str
        HOST:PORT to connect to.
    lost : int
        Number of connections that were cut so far.
    """

    def __init__(self, target, *, life, delay, seed):
        host, port = target.rsplit(":", 1)
        self._target, self._life, self._delay = (host, int(port)), life, delay
        self._random, self._open, self.lost = random.Random(seed), True, 0
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __exit__(self, *_):
        self._open = False
        self._server.close()

    def _accept(self):
        with suppress(OSError):  # it was closed
            while self._open:
                near, _ = self._server.accept()
                left = self._random.expovariate(1.0 / self._life)
                how = near, left, random.Random(self._random.random())
                threading.Thread(target=self._pass_on, args=how, daemon=True).start()

    def _pass_on(self, near, left, draws):
        with near, socket.socket() as far, selectors.DefaultSelector() as ready, suppress(OSError):
            far.connect(self._target)
            ready.register(near, selectors.EVENT_READ, far)
            ready.register(far, selectors.EVENT_READ, near)
            while self._open:
                for key, _ in ready.select(timeout=0.5):
                    received = key.fileobj.recv(65536)
                    if not received:
                        return
                    threading.Event().wait(draws.uniform(0.0, self._delay))
                    key.data.sendall(received[: int(left)])
                    left -= len(received)
                    if left <= 0:
                        self.lost += 1
                        return
