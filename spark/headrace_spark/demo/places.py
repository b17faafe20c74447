"""Where the demo's things lie: one folder, which one demo at a time may have.

Responsible for paths and for a fresh start. Knows nothing of what is in the files.
"""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path


class Unsound(Exception):
    """Something did not come within its time; the message says what."""


@dataclass(frozen=True, slots=True)
class Places:
    """The demo's folder and what lies in it."""

    root: Path

    @property
    def data(self) -> Path:
        """The nodes'."""
        return self.root / "data"

    @property
    def results(self) -> Path:
        """For the reader."""
        return self.root / "results"

    @property
    def logs(self) -> Path:
        """One file a process."""
        return self.root / "logs"

    @property
    def scratch(self) -> Path:
        """Spark's: checkpoint and what it spills."""
        return self.root / "scratch"

    @property
    def ledger(self) -> Path:
        """What the producer recorded as acknowledged."""
        return self.results / "acknowledged.csv"

    @property
    def database(self) -> Path:
        """The current state."""
        return self.results / "state.sqlite"

    @property
    def windows(self) -> Path:
        """Parquet."""
        return self.results / "windows.parquet"

    @property
    def picture(self) -> Path:
        """PNG."""
        return self.results / "anomalies.png"

    @property
    def verdict(self) -> Path:
        """The checks as JSON."""
        return self.results / "checks.json"

    @property
    def metrics(self) -> Path:
        """The nodes' metrics, once all was read."""
        return self.results / "metrics.txt"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the folder against another demo. Raises Unsound where one runs."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "lock").open("wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Unsound(f"another demo runs in {self.root}: wait for it, or name another --folder") from None
            yield

    def clear(self) -> None:
        """Make everything anew."""
        for folder in (self.data, self.results, self.logs, self.scratch):
            shutil.rmtree(folder, ignore_errors=True)
        for folder in (self.results, self.logs, self.scratch):
            folder.mkdir()


def shown(path: Path) -> str:
    """A path as a person would type it here."""
    with suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
