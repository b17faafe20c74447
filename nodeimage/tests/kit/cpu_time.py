"""Support for tests that measure the processor time of a few steps."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """Within the context there is no garbage collection: a full one after all earlier tests takes up to a second."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
