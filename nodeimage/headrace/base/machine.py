"""What is known of the machine."""

import functools
from pathlib import Path


@functools.cache
def boot_id() -> str:
    """Of the start of the machine that it runs since. Raises OSError where the system has none (other than Linux)."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
