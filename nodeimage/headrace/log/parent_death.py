"""Ends a child process when its parent dies, even if the parent is killed.

A regroup that outlived its node would write to a folder that the next node process already uses.
"""

import ctypes
import os
import signal
import sys

ORPHANED = 4
"""Exit status of a child process whose parent had ended before the child did anything; no other status of these
processes."""
_PR_SET_PDEATHSIG = 1


def end_with_parent(expected: int | None = None) -> None:
    """Asks the kernel to kill this process when its parent ends (Linux), and exits now if the parent has ended already.

    `expected`: the process id of the parent. Without it, the real parent cannot be told from the process that adopts
    orphans.
    """
    parent = os.getppid() if expected is None else expected
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(ORPHANED)
