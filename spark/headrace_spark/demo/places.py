"""The demo's files: one folder, used by one demo at a time.

Defines paths and clears them for a new run; does not interpret the files.
"""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path


class Unsound(Exception):
    """The demo cannot continue: a step was not done in time, another demo has locked its folder, or a container has
    no known leader. The message says which.
    """


@dataclass(frozen=True, slots=True)
class Places:
    """The demo's folder and the paths in it."""

    root: Path

    @property
    def data(self) -> Path:
        """The nodes' data."""
        return self.root / "data"

    @property
    def results(self) -> Path:
        """The results for the reader."""
        return self.root / "results"

    @property
    def logs(self) -> Path:
        """The logs, one file per process."""
        return self.root / "logs"

    @property
    def scratch(self) -> Path:
        """Spark's checkpoint and temporary files."""
        return self.root / "scratch"

    @property
    def ledger(self) -> Path:
        """The producer's record of what was acknowledged."""
        return self.results / "acknowledged.csv"

    @property
    def database(self) -> Path:
        """The database with the current state."""
        return self.results / "state.sqlite"

    @property
    def windows(self) -> Path:
        """The Parquet folder."""
        return self.results / "windows.parquet"

    @property
    def picture(self) -> Path:
        """The picture of the run, a PNG file."""
        return self.results / "anomalies.png"

    @property
    def verdict(self) -> Path:
        """The checks as JSON."""
        return self.results / "checks.json"

    @property
    def metrics(self) -> Path:
        """The nodes' metrics, taken once everything was read."""
        return self.results / "metrics.txt"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder against another demo. Raises Unsound if one runs."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "lock").open("wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Unsound(f"another demo runs in {self.root}: wait for it, or name another --folder") from None
            yield

    def clear(self) -> None:
        """Delete everything, and create empty folders."""
        for folder in (self.data, self.results, self.logs, self.scratch):
            shutil.rmtree(folder, ignore_errors=True)
        for folder in (self.results, self.logs, self.scratch):
            folder.mkdir()


def shown(path: Path) -> str:
    """Return a path as a person would type it here."""
    with suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
