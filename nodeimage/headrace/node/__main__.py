"""`python -m headrace.node`."""

import sys

# structlog imports rich, if it is installed, for tracebacks on a terminal. That costs 4 MiB, and a node logs logfmt.
sys.modules["rich"] = None  # type: ignore[assignment]

from headrace.node.process import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
