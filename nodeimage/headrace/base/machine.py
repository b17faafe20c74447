"""Facts about the machine."""

import functools
from pathlib import Path


@functools.cache
def boot_id() -> str:
    """The id of the machine's current boot. Raises OSError on systems without one (other than Linux)."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
