"""Builds the wheel and checks its content: three packages, py.typed in each, the node without PySpark."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

EXPECTED = ("headrace", "headrace_operator", "headrace_spark")


def main() -> int:
    """Return exit code 0 if the wheel is as it should be."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        subprocess.run([*pip, "-w", folder, "."], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = set(archive.namelist())
            (metadata,) = (name for name in names if name.endswith("METADATA"))
            required = [
                line
                for line in archive.read(metadata).decode().splitlines()
                if line.startswith("Requires-Dist") and "extra ==" not in line
            ]
        size = wheel.stat().st_size
    missing = [f"{package}/py.typed" for package in EXPECTED if f"{package}/py.typed" not in names]
    strangers = {name.split("/")[0] for name in names if not name.startswith((*EXPECTED, "headrace-"))}
    heavy = [line for line in required if any(word in line for word in ("pyspark", "pyarrow", "kopf", "matplotlib"))]
    for problem in (missing, strangers, heavy):
        if problem:
            print(f"wheel: unexpected {problem}")
            return 1
    print(f"wheel: {len(names)} files, {size // 1024} KiB, requires {len(required)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
