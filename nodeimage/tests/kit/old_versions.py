"""Older versions of Headrace, built from their commits, with which rolling upgrades begin.

Each is a folder for the front of PYTHONPATH, so its nodes run beside those of this version, with the same packages. It
is built once, into the folder of the virtual environment.
"""

import fcntl
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[3]
BUILT: Final = Path(sys.prefix) / "old-versions"
LEVEL_0: Final = "523cdbc"
"""The last commit without feature levels."""


def has(commit: str) -> bool:
    """Whether this checkout has a commit, which it lacks if it has no history."""
    return (
        subprocess.run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True).returncode == 0
    )


needs_level_0: Final = pytest.mark.skipif(not has(LEVEL_0), reason=f"no commit {LEVEL_0} here: git fetch --unshallow")


def old_version(commit: str) -> Path:
    """The folder of a commit's code."""
    code = BUILT / commit
    BUILT.mkdir(exist_ok=True)
    with (BUILT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in parallel
        if not code.exists():
            _build(commit, code)
    return code


def export(commit: str, folder: Path) -> None:
    """Write all files of a commit into a new folder."""
    folder.mkdir(parents=True)
    archived = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x", "-C", folder], input=archived.stdout, check=True)


def _build(commit: str, code: Path) -> None:
    draft = code.with_suffix(".tmp")
    source, wheels = draft / "source", draft / "wheels"
    subprocess.run(["rm", "-rf", draft], check=True)
    export(commit, source)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "-w", wheels, source], check=True)
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(draft / "code")
    # The script that starts a node with faults uses parts of that version.
    places = (source / "nodeimage/tests" / place for place in ("kit/faulty_node.py", "cluster/faulty_node.py"))
    next(place for place in places if place.exists()).rename(draft / "code" / "faulty_node.py")
    (draft / "code").rename(code)
    subprocess.run(["rm", "-rf", draft], check=True)
