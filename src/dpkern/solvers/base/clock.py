"""The time that the parts of a run take."""

import time


class Clock:
    """Adds the duration of a `with` block to seconds[part], unless the block fails."""

    __slots__ = ("_begin", "_part", "_seconds")

    def __init__(self, seconds: dict[str, float], part: str) -> None:
        self._seconds, self._part = seconds, part

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._seconds[self._part] += time.perf_counter() - self._begin
