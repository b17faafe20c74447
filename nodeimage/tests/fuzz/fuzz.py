"""Coverage-guided fuzzing with Atheris: what strangers send, and what a broken disk gives back.

    python nodeimage/tests/fuzz/fuzz.py [TARGET ...] [--seconds 600] [--corpus DIR] [--input FILE]

Targets are the modules beside this one, all of them by default; the seconds are shared out among them. Each has
`setup(folder)`, `seeds()` and `run(data)`, and an input that makes `run` raise is a fault. It lies then in the folder
from which this was started, as `crash-*`; `--input` runs it alone. Exit code 0: no fault found.

The fuzzer leaves its process without a word to Python, so it has one of its own, and what it leaves behind is cleared
away here.
"""

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TARGETS = ("connection", "wire", "batches", "recovery")
LONGEST = 4096
"""Bytes of an input."""
MEMORY = Path("/dev/shm")
KIT = Path(__file__).resolve().parents[1]
"""The folder of the package that tests share."""


def main() -> int:
    """Fuzz each target in turn; 1 if one has a fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=" ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--corpus", type=Path, help="kept from run to run; a temporary one without it")
    parser.add_argument("--input", type=Path)
    given = parser.parse_args()
    targets = given.targets or TARGETS
    if unknown := set(targets) - set(TARGETS):
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    failed = False
    for target in targets:
        base = MEMORY if MEMORY.is_dir() else None
        with tempfile.TemporaryDirectory(prefix="headrace-fuzz-", dir=base, ignore_cleanup_errors=True) as folder:
            corpus = (given.corpus or Path(folder)) / f"corpus-{target}"
            seconds = max(1, given.seconds // len(targets))
            arguments = [str(given.input)] if given.input else [str(corpus), f"-max_total_time={seconds}"]
            print(f"{target} ...", flush=True)
            command = [sys.executable, __file__, "--worker", target, folder, str(corpus), *arguments]
            failed |= subprocess.run(command, check=False, env=_environment()).returncode != 0
    return int(failed)


def _environment() -> dict[str, str]:
    """Of a worker, which finds the kit too."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(KIT), os.environ.get("PYTHONPATH"))))}


def work(name: str, folder: Path, corpus: Path, arguments: list[str]) -> None:
    """Fuzz one target; ends the process."""
    import atheris

    with atheris.instrument_imports(include=["headrace"]):
        target = importlib.import_module(f"target_{name}")
    corpus.mkdir(parents=True, exist_ok=True)
    target.setup(folder / "work")
    for number, seed in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    limits = [f"-max_len={LONGEST}", "-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *arguments, *limits], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), sys.argv[5:])
    else:
        sys.exit(main())
