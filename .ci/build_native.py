"""Compiles to machine code those parts of the node through which each record passes.

    HEADRACE_COMPILE=1 pip wheel --no-deps .        a wheel for this platform and this Python
    HEADRACE_COMPILE=auto pip wheel --no-deps .     the same if there is a C compiler, else as below
    pip wheel --no-deps .                           a wheel of Python only, for any platform
    python .ci/build_native.py --inplace            compiles `native` beside its sources, for development
    python .ci/build_native.py --requires           what pip's --no-build-isolation needs, besides hatchling
    python .ci/build_native.py --requires-inplace   what --inplace needs

There are two kinds. Modules that compute, decisions and codecs, are Python that mypyc compiles (MODULES). Modules that
hold files stay interpreted: compiled code releases a local variable after its last use, and might close a descriptor
that is still in use. The second kind is nodeimage/headrace/native: its C uses only Python's stable ABI, so that one
file serves 3.11 and every later version; its Python, which works on bytes and machine integers, is compiled by Cython
(CODECS). Cython's result is for one version of Python, since the stable ABI would cost 0.3 us a request.

The wheel holds the sources beside the machine code, so that HEADRACE_PURE=1 can run them.
"""

import argparse
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCE: Final = Path("nodeimage")
CYTHON: Final = "cython==3.3.1"
"""Pinned to one version: each version generates different C, and only this one was tested."""
REQUIRES: Final = ("mypy==2.4.1", "setuptools>=65", CYTHON)
GROUP: Final = "headrace"
"""The name of the library that all modules compiled by mypyc share, so that they call each other directly."""
MODULES: Final = {
    "base": ("build",),
    "metrics": ("histogram", "log_times", "requests", "traffic"),
    "wire": ("api_keys", "batch", "fetch", "header", "primitives", "produce", "records"),
    "log": ("appending", "frames", "index", "table", "tail"),
    "container": ("commit_waiters", "follower", "follower_feed", "leader", "leader_state", "sync_cycle"),
    "partitions": ("partition", "producer_state", "topic"),
    "links/pull": ("byte_budget", "fair_queue", "partition_pull", "partition_state"),
    "kafka": (
        "connection",
        "dispatch",
        "fetch",
        "pending_produce",
        "produce",
        "reading_pace",
        "sasl_gate",
    ),
}
"""The modules that mypyc compiles, by package. Their classes must not derive from interpreted ones."""
NATIVE: Final = SOURCE / "headrace" / "native"
"""The folder in which each `.c` file is compiled to a module of its name."""
CODECS: Final = "_codecs"
"""The module there that Cython compiles: `.py`, with `.pxd` for the C that it uses."""
DIRECTIVES: Final = "language_level=3,binding=False,boundscheck=False,wraparound=False,initializedcheck=False"
FLAGS: Final = ("-std=gnu11", "-O2", "-g0", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra")


def is_wanted() -> bool:
    """Return whether the environment asks for machine code."""
    asked = os.environ.get("HEADRACE_COMPILE", "")
    return can_compile() if asked == "auto" else asked not in ("", "0")


def compiler() -> list[str] | None:
    """Return the C compiler's command: CC's value, else the one with which Python was built, else cc; None if there is
    none.
    """
    for named in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc"):
        command = shlex.split(named or "")
        if command and shutil.which(command[0]):
            return command
    return None


def can_compile() -> bool:
    """Return whether everything needed exists: Linux, a compiler and Python's headers."""
    return sys.platform == "linux" and compiler() is not None and (_headers() / "Python.h").exists()


def compile_native(root: Path, into: Path, *, codecs: bool = True) -> dict[Path, str]:
    """Compile `native` to libraries in `into`; return each with its place in a wheel.

    Raises CalledProcessError, after the compiler has printed why.
    """
    into.mkdir(parents=True, exist_ok=True)
    built = [_library(source, into / f"{source.stem}.abi3.so") for source in sorted((root / NATIVE).glob("*.c"))]
    if codecs:
        with tempfile.TemporaryDirectory(prefix="headrace-cython-") as folder:
            source = Path(folder) / f"{CODECS}.c"
            name = f"headrace.native.{CODECS}"
            cython = [sys.executable, "-m", "cython", "-X", DIRECTIVES, "--module-name", name, "-o", str(source)]
            subprocess.run([*cython, f"{CODECS}.py"], cwd=root / NATIVE, check=True)
            built.append(_library(source, into / f"{CODECS}{sysconfig.get_config_var('EXT_SUFFIX')}"))
    return {library: str(NATIVE.relative_to(SOURCE) / library.name) for library in built}


def _library(source: Path, library: Path) -> Path:
    command = compiler()
    assert command is not None
    fresh = library.with_suffix(".tmp")
    subprocess.run([*command, *FLAGS, f"-I{_headers()}", "-o", str(fresh), str(source)], check=True)
    return fresh.replace(library)  # processes that have the former file mapped keep it


def has_cython() -> bool:
    """Return whether Cython is installed, in whatever version."""
    return importlib.util.find_spec("Cython") is not None


def _headers() -> Path:
    return Path(sysconfig.get_path("include"))


def compiled_modules() -> Iterator[Path]:
    """Yield the sources of all modules that mypyc compiles, relative to the project's root."""
    for package, names in MODULES.items():
        yield from (SOURCE / "headrace" / package / f"{name}.py" for name in names)


def compile_modules(root: Path, work: Path) -> dict[Path, str]:
    """Compile all modules in `work`; return each library with its place in a wheel. Exits if mypy finds a fault.

    Earlier results in `work` are reused, as far as their sources have not changed.
    """
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    libraries = work / "lib"
    before = Path.cwd()
    os.chdir(root)  # mypy reads its settings there
    try:
        extensions = mypycify(
            ["--cache-dir", str(work / "mypy"), *map(str, compiled_modules())],
            debug_level="0",
            multi_file=True,
            group_name=GROUP,
            target_dir=str(work / "c"),
        )
        command = build_ext(Distribution({"name": "headrace", "ext_modules": extensions}))
        command.build_lib, command.build_temp = str(libraries), str(work / "objects")
        command.parallel = len(os.sched_getaffinity(0))
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(before)
    return {Path(path): str(Path(path).relative_to(libraries)) for path in command.get_outputs()}


def get_build_hook() -> type[Any]:
    """Return the hook that hatchling calls for each wheel."""
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface  # installed only while a wheel is built

    class NativeHook(BuildHookInterface[Any]):
        """Adds machine code to a wheel, if it is asked for."""

        def dependencies(self) -> list[str]:
            """Return what has to be installed before, including the node's dependencies, whose types mypy reads."""
            return [*REQUIRES, *self.metadata.core.dependencies] if is_wanted() else []

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """See hatchling. An editable installation runs the sources, without machine code."""
            if version == "editable" or not is_wanted():
                return
            if not can_compile():
                sys.exit(
                    "HEADRACE_COMPILE is set, but no C compiler, no Python.h, or no Linux is here: 0 or auto continues"
                )
            root = Path(self.root)
            work = root / "build" / f"native-{sys.implementation.cache_tag}"
            built = {**compile_modules(root, work), **compile_native(root, work / "native")}
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["force_include"] |= {str(library): place for library, place in built.items()}

    return NativeHook


def main(arguments: Sequence[str]) -> int:
    """Return exit code 0 if everything is compiled, or cannot be on this machine."""
    parse = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    what = parse.add_mutually_exclusive_group(required=True)
    what.add_argument("--inplace", action="store_true", help="put what lies in `native` beside its sources")
    what.add_argument("--requires", action="store_true", help="print what compiling needs, if it is asked for")
    what.add_argument("--requires-inplace", action="store_true", help="print what --inplace needs, if it can be")
    asked = parse.parse_args(arguments)
    if asked.requires:
        print(*REQUIRES if is_wanted() else ())
        return 0
    if asked.requires_inplace:
        print(*(CYTHON,) if can_compile() else ())
        return 0
    if not can_compile():
        print("no C compiler, or no headers of Python: the node runs without its native pieces, and is slower")
        return 0
    if not has_cython():
        print(f"no Cython: the node's codecs stay Python, and are slower; pip install {CYTHON}")
    for library in compile_native(ROOT, ROOT / NATIVE, codecs=has_cython()):
        print(f"compiled {library.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
