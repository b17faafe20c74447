"""For tests that measure the processor time of a few steps."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """No garbage is collected meanwhile: a full collection of what all earlier tests have left takes up to a second."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
