"""The network between two clusters, which a test can cut: a node's advertised address, forwarded to its listener."""

import asyncio
import contextlib

LARGE = 400
"""Bytes of a request that brings records. Requests of links and of Metadata are smaller."""


class CutNetwork:
    """Forwards connections from `advertised`:`port` to `listening`:`port`, while the network is whole."""

    def __init__(self, *, advertised: str, listening: str, port: int) -> None:
        self._advertised = advertised
        self._listening = listening
        self.port = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._doomed: set[asyncio.StreamWriter] = set()
        """Connections to the node that wait for an answer that will be lost."""
        self.whole = True
        self.answers_get_lost = False
        """Requests with records (at least `LARGE` bytes) arrive; the first byte of the answer ends the connection."""
        self.lost_answers = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self._advertised, self.port)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()

    def cut(self) -> None:
        """Close open connections; new ones are disconnected meanwhile."""
        self.whole = False
        for writer in self._writers:
            writer.transport.abort()

    def heal(self) -> None:
        self.whole = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.whole:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection(self._listening, self.port)
        except OSError:  # the node does not listen
            writer.transport.abort()
            return
        both = {writer, back}
        self._writers |= both
        try:
            await asyncio.gather(self._to_node(reader, back), self._from_node(there, writer, back))
        finally:
            for each in both:
                each.transport.abort()
            self._writers -= both
            self._doomed.discard(back)

    async def _to_node(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while octets := await reader.read(1 << 16):
                if self.answers_get_lost and len(octets) >= LARGE:
                    self._doomed.add(writer)
                writer.write(octets)
        writer.transport.abort()

    async def _from_node(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while octets := await reader.read(1 << 16):
                if back in self._doomed:
                    self.lost_answers += 1
                    break
                writer.write(octets)
        writer.transport.abort()
