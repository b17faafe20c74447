"""Tests on a compiled Headrace: a wheel of machine code, in an environment of its own beside the developers' one.

    .venv/bin/python .ci/compiled.py [ARGUMENTS FOR PYTEST]     the gate's tests and seeds, or what the arguments choose

The environment has the packages of the one that runs this, but for Headrace, which is installed there from the wheel:
the sources of the checkout are not on its path. What was compiled before is kept in `build`, so that only what has
changed is compiled again.
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import stages

SEEDS: Final = "0:100"
TESTS: Final = tuple(
    f"nodeimage/tests/{name}"
    for name in ("base/test_build.py", "wire", "log", "metrics", "container", "partitions", "kafka", "clients")
)
"""The packages that have compiled modules, and clients."""


def install(folder: Path) -> Path:
    """Build the wheel, and install it in a new environment in `folder`; its Python. Raises CalledProcessError."""
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=stages.ROOT, env={**os.environ, "HEADRACE_COMPILE": "1"}, check=True)
    (wheel,) = folder.glob("*.whl")
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    # As a path alone: a .pth file in there, which would lead to the checkout, counts for nothing.
    Path(packages, "shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "--no-deps", "--no-compile", str(wheel)], check=True)
    return python


def run(python: Path, *arguments: str, **environment: str) -> int:
    """The exit code of a Python that has the compiled Headrace."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([python, *arguments], cwd=stages.ROOT, env={**known, **environment}, check=False).returncode


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 if all was ok."""
    with tempfile.TemporaryDirectory(prefix="headrace-compiled-") as folder:
        python = install(Path(folder))
        if run(python, "-c", "from headrace.base.build import build; assert build() == 'compiled'"):
            print("failed: what is installed is not compiled")
            return 1
        pytest = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
        if arguments:
            return run(python, *pytest, *arguments)
        workers = ("-n", str(2 * stages.CORES), "--dist", "worksteal")
        simulated = ("-m", "simulation", "--seeds", SEEDS, "--jobs", str(stages.CORES))
        return run(python, *pytest, *workers, "-m", stages.QUICK, *TESTS) | run(
            python, *simulated, PYTHONPATH=str(stages.ROOT / "nodeimage" / "tests")
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
