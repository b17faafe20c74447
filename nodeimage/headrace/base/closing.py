"""What is closed at the end of a `with` block, or by `close` where it is kept for longer."""

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """contextlib.closing as a base class, for what is used in both ways."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held. Closing twice is fine."""
