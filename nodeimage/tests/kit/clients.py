"""Waiting for results of clients."""

import time
from collections.abc import Callable
from typing import Any

from kit.patience import PATIENCE

LOOK_S = 0.02


def until(condition: Callable[[], Any], *, within: float = 20.0, told: object = "it did not come about") -> None:
    """Return once a condition holds. Fails after `within` seconds, times PATIENCE, with the text of `told` at that
    time.
    """
    deadline = time.monotonic() + within * PATIENCE
    while not condition():
        assert time.monotonic() < deadline, str(told)
        time.sleep(LOOK_S)
