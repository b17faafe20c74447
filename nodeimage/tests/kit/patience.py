"""How much longer than usual tests wait for what is to happen, where the machine has much else to do.

What is checked of records stays as it is.
"""

import os
from typing import Final

PATIENCE: Final = float(os.environ.get("HEADRACE_PATIENCE", "1"))
"""Times as long."""
