"""Coverage-guided fuzzing with Atheris: what strangers send, and what a broken disk gives back.

    python nodeimage/tests/fuzz/fuzz.py TARGET [--seconds 600] [--corpus DIR] [INPUT ...]

Targets are the modules beside this one; each has `setup()`, `SEEDS()` and `run(data)`, and an input that makes `run`
raise is a fault. With INPUT files it runs these alone. The last line on stdout says how many inputs were tried. Exit code
0: no fault found; else libFuzzer's, and the input lies in the folder from which it was started, as `crash-*`.
"""

import argparse
import importlib
import sys
import tempfile
from pathlib import Path

import atheris

TARGETS = ("wire", "batches", "recovery", "connection")
LONGEST = 4096
"""Bytes of an input."""


def main() -> None:
    """Fuzz one target."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--corpus", type=Path, help="kept from run to run; a temporary one without it")
    parser.add_argument("inputs", nargs="*", type=Path)
    given = parser.parse_args()
    with atheris.instrument_imports(include=["headrace"]):
        target = importlib.import_module(f"target_{given.target}")
    target.setup()
    with tempfile.TemporaryDirectory(prefix="headrace-fuzz-") as temporary:
        corpus = given.corpus or Path(temporary)
        corpus.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(target.seeds()):
            (corpus / f"seed-{given.target}-{number}").write_bytes(seed)
        inputs = [str(path) for path in given.inputs] or [
            str(corpus),
            f"-max_total_time={given.seconds}",
            f"-max_len={LONGEST}",
            "-timeout=20",
            "-rss_limit_mb=2048",
            "-print_final_stats=1",
            "-verbosity=0",
        ]
        atheris.Setup([sys.argv[0], *inputs], target.run)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
