"""Files of readings, and what is detected about their columns."""

from pathlib import Path

from headrace.cli.readings import Asked, Columns, ReadingsFile


def written(folder: Path, text: str | bytes, name: str = "press.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def columns_of(path: Path, asked: Asked | None = None) -> Columns:
    return ReadingsFile(path, asked or Asked()).columns
