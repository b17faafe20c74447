"""Signals to the test's own process."""

import os
import signal


def come(number: signal.Signals) -> None:
    """Send this process a signal now."""
    os.kill(os.getpid(), number)
