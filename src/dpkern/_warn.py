"""Warnings that point to the user's line."""

import sys
import warnings
from types import FrameType


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line that called dpkern, however deep inside the cause was found."""
    frame: FrameType | None = sys._getframe()
    level = 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("dpkern"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
