"""Compiles the pieces of the node that are written in C (nodeimage/headrace/native).

    python .ci/build_native.py --inplace      beside their sources, for development; without a C compiler: nothing

A library keeps to Python's stable interface: one file serves 3.11 and every later version.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
NATIVE: Final = Path("nodeimage/headrace/native")
PIECES: Final = ("_writer",)
"""Each a `.c`, and a module of that name."""
FLAGS: Final = ("-std=gnu11", "-O2", "-g0", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra")


def compiler() -> list[str] | None:
    """The C compiler's command: what CC names, else what Python was built with, else cc. None: there is none."""
    for named in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc"):
        command = shlex.split(named or "")
        if command and shutil.which(command[0]):
            return command
    return None


def can_compile() -> bool:
    """Whether there is all that it takes: Linux, a compiler and Python's headers."""
    return sys.platform == "linux" and compiler() is not None and (_headers() / "Python.h").exists()


def compile_c(root: Path, into: Path) -> dict[Path, str]:
    """Compile all pieces to libraries in `into`; each with its place in a wheel.

    Raises CalledProcessError, after the compiler has said why.
    """
    command = compiler()
    assert command is not None
    built = {}
    for piece in PIECES:
        library = into / f"{piece}.abi3.so"
        library.parent.mkdir(parents=True, exist_ok=True)
        fresh = library.with_suffix(".tmp")
        source = root / NATIVE / f"{piece}.c"
        subprocess.run([*command, *FLAGS, f"-I{_headers()}", "-o", str(fresh), str(source)], check=True)
        fresh.replace(library)  # whoever has the former one mapped keeps it
        built[library] = str(NATIVE.relative_to("nodeimage") / library.name)
    return built


def _headers() -> Path:
    return Path(sysconfig.get_path("include"))


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 if all is compiled, or cannot be on this machine."""
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--inplace", action="store_true", required=True, help="put the libraries beside their sources")
    parse.parse_args(arguments)
    if not can_compile():
        print("no C compiler, or no headers of Python: the node runs without its native pieces, and is slower")
        return 0
    for library in compile_c(ROOT, ROOT / NATIVE):
        print(f"compiled {library.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
