"""`python -m headrace.node`."""

import sys

# structlog loads rich where it can, for tracebacks on a terminal: 4 MiB, and a node writes logfmt.
sys.modules["rich"] = None  # type: ignore[assignment]

from headrace.node.process import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
