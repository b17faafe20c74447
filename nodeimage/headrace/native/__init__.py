"""The pieces that are compiled from C, each None where this Headrace was built without it; all of them can be missing.

`writer`: writes to files without the interpreter's lock. What stands in for it: threads of Python
(container/writer_pool.py).
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.native import _writer as writer
else:
    writer = None
    if os.environ.get("HEADRACE_PURE", "") in ("", "0"):
        try:
            writer = import_module("headrace.native._writer")
        except ImportError:  # there was no C compiler, or the library is for another platform
            pass

__all__ = ["writer"]
