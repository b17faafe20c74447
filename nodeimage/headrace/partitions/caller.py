"""The client that sent a request, as far as answers depend on it."""

from typing import Protocol

from headrace.security.principals import Principal


class Caller(Protocol):
    """A client's connection."""

    @property
    def listener(self) -> str:
        """The name of the listener that the client connected to; nodes may have different addresses for each
        listener."""

    @property
    def default_stream(self) -> str:
        """The path of the stream to which topic names without a path refer at the client's listener."""

    @property
    def peer(self) -> str:
        """The client's address, for the log."""

    @property
    def principal(self) -> Principal:
        """The user whom the client has authenticated as."""

    @property
    def client_id(self) -> str | None:
        """The client id that the client gives itself."""
