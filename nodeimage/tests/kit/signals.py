"""Signals to the test's own process."""

import os
import signal


def come(number: signal.Signals) -> None:
    """Have a signal come now."""
    os.kill(os.getpid(), number)
