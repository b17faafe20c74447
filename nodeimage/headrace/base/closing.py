"""A base class of objects that are closed at the end of a `with` block or by `close`."""

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Like contextlib.closing, but as a base class."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Releases all resources. Idempotent."""
