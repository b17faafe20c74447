"""A compiled Headrace: a wheel with machine code, in a separate environment beside the developers' one.

    .venv/bin/python .ci/compiled.py [ARGUMENTS FOR PYTEST]     the gate's tests and seeds, or the chosen tests
    .venv/bin/python .ci/compiled.py --run ARGUMENTS            the environment's Python, with these arguments

The environment, in `build`, has the packages of the one that runs this, except for Headrace, which is installed from
the wheel: the sources of the checkout are not on its path. It is rebuilt when they have changed, and only changed
modules are compiled again. Without a C compiler this prints a note, and runs the interpreted code.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import build_native
import stages

FOLDER: Final = stages.ROOT / "build" / "compiled"
SOURCES: Final = ("nodeimage/headrace", "operator/headrace_operator", "spark/headrace_spark")
SEEDS: Final = "0:100"
TESTS: Final = tuple(
    f"nodeimage/tests/{name}"
    for name in ("base/test_build.py", "native", "wire", "log", "metrics", "container", "partitions", "kafka", "links")
)
"""The tests of packages that have compiled modules."""
PURE_TESTS: Final = ("nodeimage/tests/wire", "nodeimage/tests/log/test_frames.py")
"""Tests of the Python twins of native code. Other runs of tests do not reach them: a checkout uses the native code."""


def python() -> Path:
    """Return the environment's Python; build it if it is missing, or from other sources. Raises CalledProcessError."""
    if not build_native.can_compile():
        print("no C compiler, or no headers of Python: running the interpreted code instead")
        return Path(sys.executable)
    of = _digest()
    found, built = FOLDER / "environment" / "bin" / "python", FOLDER / "sources"
    if not found.exists() or not built.exists() or built.read_text() != of:
        shutil.rmtree(FOLDER, ignore_errors=True)
        found = install(FOLDER)
        built.write_text(of)
    return found


def install(folder: Path) -> Path:
    """Build the wheel and install it in a new environment in `folder`; return its Python. Raises CalledProcessError."""
    folder.mkdir(parents=True, exist_ok=True)
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=stages.ROOT, env={**os.environ, "HEADRACE_COMPILE": "1"}, check=True)
    (wheel,) = folder.glob("*.whl")
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    found = environment / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([found, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    # This puts the developers' packages on sys.path. Python does not process .pth files in a folder added this way, so
    # theirs, which leads to the checkout, has no effect.
    Path(packages, "shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(found)]
    subprocess.run([*pip, "install", "--no-deps", "--no-compile", str(wheel)], check=True)
    probe = [found, "-c", "from headrace.base.build import build; print(build())"]
    said = subprocess.run(
        probe, cwd=folder, env=_environment(), capture_output=True, text=True, check=True
    ).stdout.strip()
    if said != "compiled":
        sys.exit(f"what is installed in {environment} says that it is {said}")
    return found


def _digest() -> str:
    """Return a digest of all that goes into the wheel."""
    found = hashlib.sha256()
    root = stages.ROOT
    files = [root / "pyproject.toml", root / ".ci" / "build_native.py"]
    files += sorted(
        path for each in SOURCES for path in (root / each).rglob("*.*") if path.suffix in (".py", ".pxd", ".c")
    )
    for path in files:
        found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return found.hexdigest()


def run(found: Path, *arguments: str, **environment: str) -> int:
    """Run that Python; return its exit code."""
    known = _environment() | environment
    return subprocess.run([found, *arguments], cwd=stages.ROOT, env=known, check=False).returncode


def _environment() -> dict[str, str]:
    """Return this process's environment without a path to the checkout, whose sources would be found first."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def main(arguments: Sequence[str]) -> int:
    """Return exit code 0 if everything was ok."""
    found = python()
    if arguments[:1] == ["--run"]:
        return run(found, *arguments[1:])
    pytest = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
    if arguments:
        return run(found, *pytest, *arguments)
    workers = ("-n", str(2 * stages.CORES), "--dist", "worksteal")
    simulated = ("-m", "simulation", "--seeds", SEEDS, "--jobs", str(stages.CORES))
    return (
        run(found, *pytest, *workers, "-m", stages.QUICK, *TESTS)
        | run(found, *pytest, *workers, *PURE_TESTS, HEADRACE_PURE="1")
        | run(found, *simulated, PYTHONPATH=str(stages.ROOT / "nodeimage" / "tests"))
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
