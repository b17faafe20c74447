"""The driver's program for spark-submit, which needs a file; same as `python -m headrace_spark.job`."""

import sys

from headrace_spark.job.__main__ import main

sys.exit(main())
