"""The driver's program, for spark-submit, which wants a file: `python -m headrace_spark.job` is the same."""

import sys

from headrace_spark.job.__main__ import main

sys.exit(main())
