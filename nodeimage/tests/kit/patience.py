"""How much longer than usual tests wait for events on a busy machine.

The checks of records are not affected.
"""

import os
from typing import Final

PATIENCE: Final = float(os.environ.get("HEADRACE_PATIENCE", "1"))
"""The factor by which time limits are multiplied."""
