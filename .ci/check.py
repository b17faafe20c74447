"""`make check`: lint, types, imports, and the tests of changed packages, in less than three minutes.

A file counts as changed if it differs from where this branch left `main` (HEADRACE_CHECK_BASE names another commit), is
not committed, or is untracked. Tests that wait long, measure time, need Java or Spark, or simulate clusters are left to
`make test`.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import PurePosixPath

import stages

PACKAGES = {
    "nodeimage": ("nodeimage/headrace", "nodeimage/tests"),
    "operator": ("operator/headrace_operator", "operator/tests"),
    "spark": ("spark/headrace_spark", "spark/tests"),
    "bench": ("bench", "bench/tests"),
}
"""By top folder: its code, and its tests, whose folders are named like the packages that they test."""
DOCUMENTED = ("nodeimage/tests/test_docs.py", "nodeimage/tests/test_commands_in_docs.py")
ELSEWHERE = {
    "crds": ("operator/tests/test_crds.py", "operator/tests/test_charts.py"),
    "charts": ("operator/tests/test_charts.py", "operator/tests/test_dashboards.py", "operator/tests/alerts"),
    "docs": DOCUMENTED,
    "README.md": DOCUMENTED,
    "CONTRIBUTING.md": DOCUMENTED,
    ".ci": ("nodeimage/tests/test_marks.py", "operator/tests/test_dashboards.py"),
    "pyproject.toml": ("nodeimage/tests/test_marks.py",),
}


def git(*arguments: str) -> list[str]:
    """Return the lines that git prints; none if it fails."""
    done = subprocess.run(["git", *arguments], cwd=stages.ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def changed() -> set[str]:
    """Return the paths of changed files, relative to the root."""
    named = os.environ.get("HEADRACE_CHECK_BASE")
    bases = [named] if named else ["origin/main", "main"]
    base = next((found[0] for each in bases if (found := git("merge-base", "HEAD", each))), "HEAD")
    return {*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")}


def tests_of(path: str) -> list[str]:
    """Return the files or folders of tests for a changed file; for a module, its package's tests."""
    top, *rest = PurePosixPath(path).parts
    if top in ELSEWHERE:
        return list(ELSEWHERE[top])
    if path.endswith("Dockerfile"):
        return ["operator/tests/test_images.py"]
    if top not in PACKAGES or not path.endswith(".py"):
        return []
    code, tests = PACKAGES[top]
    name = rest[-1]
    if path.startswith(f"{tests}/"):
        return [path] if name.startswith("test_") else [str(PurePosixPath(path).parent)]
    if not path.startswith(f"{code}/"):  # directly in the top folder
        return [tests]
    inside = PurePosixPath(path).relative_to(code)
    for folder in list(inside.parents)[:-1]:  # the innermost package that has its own tests
        if (stages.ROOT / tests / folder).is_dir():
            return [f"{tests}/{folder}"]
    return [f"{tests}/test_{inside.stem}.py"] if top == "nodeimage" else [tests]


def chosen(paths: Iterable[str]) -> list[str]:
    """Return the tests to run, without those in a folder that is run as a whole."""
    found = {test for path in paths for test in tests_of(path) if (stages.ROOT / test).exists()}
    return sorted(test for test in found if not any(str(parent) in found for parent in PurePosixPath(test).parents))


def main() -> int:
    """Return exit code 0 if nothing was found."""
    tests = chosen(changed())
    print("tests of what has changed:", *(tests or ["none"]))
    lanes = [[*stages.LINT, stages.MYPY]]
    if tests:
        lanes.insert(0, [stages.pytest("tests", stages.QUICK, *tests, workers=2 * stages.CORES)])
    return stages.run_steps([lanes])


if __name__ == "__main__":
    sys.exit(main())
