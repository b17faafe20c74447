"""Who asks for something: a client, as far as answers differ with it."""

from typing import Protocol

from headrace.security.principals import Principal


class Caller(Protocol):
    """A client's connection."""

    @property
    def listener(self) -> str:
        """The name of the listener by which it came; nodes may have other addresses for its clients."""

    @property
    def default_stream(self) -> str:
        """The path of the stream that a topic's name without a path is of, at that listener."""

    @property
    def peer(self) -> str:
        """Its address, for the log."""

    @property
    def principal(self) -> Principal:
        """Who it is."""

    @property
    def client_id(self) -> str | None:
        """What it calls itself."""
