"""`python -m headrace_spark.demo`: the story end to end, in `.demo` of the current folder."""

import argparse
import sys
from pathlib import Path

from headrace_spark.demo.places import Places
from headrace_spark.demo.screen import Screen
from headrace_spark.demo.story import QUICK, Story, Times
from headrace_spark.errors import SourceError


def main() -> int:
    """Run the demo; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m headrace_spark.demo", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a shorter run, for tests")
    parser.add_argument("--folder", type=Path, default=Path(".demo"), help="the folder for all files [default: .demo]")
    asked = parser.parse_args()
    with Screen() as screen:
        try:
            story = Story(Places(asked.folder.resolve()), screen, times=QUICK if asked.quick else Times())
            return story.run()
        except SourceError as error:  # no Java
            screen.failure(str(error))
            return 1


if __name__ == "__main__":
    sys.exit(main())
