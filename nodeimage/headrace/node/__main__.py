"""`python -m headrace.node`."""

import sys

from headrace.node.process import main

if __name__ == "__main__":
    sys.exit(main())
