"""Compiles the parts of the node that each record comes through to machine code.

    HEADRACE_COMPILE=1 pip wheel --no-deps .        a wheel for this platform and this Python
    HEADRACE_COMPILE=auto pip wheel --no-deps .     the same where there is a C compiler, else as below
    pip wheel --no-deps .                           a wheel of Python alone, for any platform
    python .ci/build_native.py --inplace            what lies in `native`, beside its sources, for development
    python .ci/build_native.py --requires           what pip's --no-build-isolation wants to find, besides hatchling
    python .ci/build_native.py --requires-inplace   what --inplace wants to find

Two kinds. What computes, decisions and codecs, is Python that mypyc compiles (MODULES). What holds files stays
interpreted: compiled code lets go of a local as soon as it has used it for the last time, and might close a descriptor
that is still in use. And nodeimage/headrace/native: its C keeps to Python's stable interface, so that one file serves
3.11 and every later version; its Python, which is all bytes and numbers of the processor, is for Cython (CODECS). What
Cython makes of it is for one version of Python, since the stable interface would cost 0.3 us a request.

The sources lie in the wheel beside the machine code, so that
HEADRACE_PURE=1 can run them.
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
"""One version: the C that it writes changes with each, and was tried with this one."""
REQUIRES: Final = ("mypy==2.4.1", "setuptools>=65", CYTHON)
GROUP: Final = "headrace"
"""The name of the library that all modules of mypyc's share, so that they call each other directly."""
MODULES: Final = {
    "base": ("build",),
    "metrics": ("histogram", "log_times", "requests", "traffic"),
    "wire": ("api_keys", "batch", "fetch", "header", "primitives", "produce", "records"),
    "log": ("appending", "frames", "index", "table", "tail"),
    "container": ("commit_waiters", "leader", "leader_state", "sync_cycle"),
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
"""What mypyc compiles, by package. A class of theirs derives from none that is interpreted. Followers, and what feeds
them, stay interpreted: compiled, one whose connection was cut in the middle of a snapshot waited for ever."""
NATIVE: Final = SOURCE / "headrace" / "native"
"""Where each `.c` is compiled to a module of its name."""
CODECS: Final = "_codecs"
"""What Cython compiles there: `.py`, with `.pxd` for what it uses of C."""
DIRECTIVES: Final = "language_level=3,binding=False,boundscheck=False,wraparound=False,initializedcheck=False"
FLAGS: Final = ("-std=gnu11", "-O2", "-g0", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra")


def is_wanted() -> bool:
    """Whether the environment asks for machine code."""
    asked = os.environ.get("HEADRACE_COMPILE", "")
    return can_compile() if asked == "auto" else asked not in ("", "0")


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


def compile_native(root: Path, into: Path, *, codecs: bool = True) -> dict[Path, str]:
    """Compile what lies in `native` to libraries in `into`; each with its place in a wheel.

    Raises CalledProcessError, after the compiler has said why.
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
    return fresh.replace(library)  # whoever has the former one mapped keeps it


def has_cython() -> bool:
    """Whether the one of `CYTHON` is there, or another."""
    return importlib.util.find_spec("Cython") is not None


def _headers() -> Path:
    return Path(sysconfig.get_path("include"))


def compiled_modules() -> Iterator[Path]:
    """The sources of all modules that mypyc compiles, from the project's root."""
    for package, names in MODULES.items():
        yield from (SOURCE / "headrace" / package / f"{name}.py" for name in names)


def compile_modules(root: Path, work: Path) -> dict[Path, str]:
    """Compile all modules in `work`; each library with its place in a wheel. Ends the process where mypy finds a fault.

    What `work` has of an earlier time is used again, as far as nothing it comes from has changed.
    """
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    libraries = work / "lib"
    before = Path.cwd()
    os.chdir(root)  # mypy has its settings from there
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
    """What hatchling calls for each wheel."""
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface  # there only when a wheel is built

    class NativeHook(BuildHookInterface[Any]):
        """Puts machine code into a wheel, where that is asked for."""

        def dependencies(self) -> list[str]:
            """What has to be installed before; with what the node depends on, as mypy reads its types."""
            return [*REQUIRES, *self.metadata.core.dependencies] if is_wanted() else []

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """See hatchling. An editable installation has its code from the sources, and stays of Python alone."""
            if version == "editable" or not is_wanted():
                return
            if not can_compile():
                sys.exit(
                    "HEADRACE_COMPILE is set, but no C compiler, no Python.h, or no Linux is here: 0 or auto goes on"
                )
            root = Path(self.root)
            work = root / "build" / f"native-{sys.implementation.cache_tag}"
            built = {**compile_modules(root, work), **compile_native(root, work / "native")}
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["force_include"] |= {str(library): place for library, place in built.items()}

    return NativeHook


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 if all is compiled, or cannot be on this machine."""
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
