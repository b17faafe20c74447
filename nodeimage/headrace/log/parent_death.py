"""The end of a helper process when its parent dies: it ends with the node that started it, also when that is killed.

A regroup that outlived its node would replace a file under the feet of the next one.
"""

import ctypes
import os
import signal
import sys

ORPHANED = 3
"""Exit status: nothing was done."""
_PR_SET_PDEATHSIG = 1


def end_with_parent(expected: int | None = None) -> None:
    """Ask the kernel to kill this process when its parent ends (Linux), and end now if it has ended already.

    `expected`: who started it. Without that nobody can tell a parent from who takes children up whose parent ended.
    """
    parent = os.getppid() if expected is None else expected
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(ORPHANED)
