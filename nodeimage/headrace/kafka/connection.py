"""One client's connection: frames in, answers out, in the order of the requests.

Framing: every request is a 4-byte length, followed by that many bytes (`wire.header` reads their header). Several
requests may be under way at once, but answers are sent in the order of the requests, as Kafka clients expect: each
request has a `Slot` in a queue, and the answers that are ready at the head of the queue are written.

Requests also *start* in order. A request that has to wait before it can start (for a partition that is not in memory,
or for room on the disk) *parks* the connection: no later request starts before it. An API of the generic codec parks
the connection until its answer. Fetch and Produce wait without parking.

Back-pressure: the connection starts no request while it is parked, 256 requests are under way, 1 MiB of answers is
unwritten, the client does not read, or the client is above its quota (`throttle`). If half of its buffer is full too,
it stops reading from the socket; TCP then pushes back, and clients batch.
"""

import asyncio
import itertools
import mmap
import struct
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from time import monotonic
from typing import Any, Final, Protocol, cast

import structlog

from headrace.base.admission import Place
from headrace.base.errors import HeadraceError, MalformedRequest
from headrace.base.paced_transport import PacedTransport
from headrace.base.sockets import endpoints
from headrace.catalog.names import DEFAULT_STREAM
from headrace.kafka.reading_pace import ReadingPace
from headrace.kafka.session import Grants, Reply
from headrace.metrics.requests import Timed
from headrace.partitions.refusals import Refusals
from headrace.security.principals import NOBODY, Principal
from headrace.wire.api_keys import ApiKey
from headrace.wire.header import RequestHeader, framed_response_header, read_request_header

log = structlog.get_logger()

MAX_REQUEST_BYTES: Final = 100 * 1024 * 1024
MAX_UNDER_WAY: Final = 256
MAX_ANSWERED: Final = 1024 * 1024
"""Bytes of unwritten answers above which no more requests are started."""
ROOM_BYTES: Final = 256 * 1024
"""Size of a connection's read buffer."""
_MAPPED: Final = 4 * 1024 * 1024
"""Requests above this size are read into mapped memory, which costs nothing before the bytes arrive: a client can claim
any length."""
_GROWTH: Final = 4
"""Factor by which the memory of a request that is not mapped grows as its bytes arrive; mapping would cost more than
the copies."""
_JOINED: Final = 64 * 1024
"""Answers of up to this many bytes together are copied into one write."""
_LENGTH: Final = struct.Struct(">i")
_TLS_RECORD: Final[bytes] = b"\x16\x03"
"""The first bytes of a TLS handshake; read as a length, they exceed MAX_REQUEST_BYTES."""

Identify = Callable[[asyncio.BaseTransport], Principal]
"""Returns who the client of a connection is, by what its transport has proved. Raises HeadraceError if the client must
be refused."""
Buffer = bytes | bytearray | memoryview


class Handler(Protocol):
    """Answers the requests of connections: the dispatcher, or a gate in front of it."""

    def handle(self, session: "Connection", header: RequestHeader, request: memoryview, slot: "Slot") -> None:
        """Start to answer a request; may park the connection. Raises `HeadraceError` if the connection must end."""

    def connected(self, session: "Connection") -> None: ...

    def disconnected(self, session: "Connection") -> None: ...

    def failed(self, api_key: int, code: int) -> None:
        """Count that a request, or a part of it, was refused."""


class Slot:
    """The place of one answer in its connection's queue."""

    __slots__ = (
        "_connection",
        "answer_bytes",
        "answer_pieces",
        "api_key",
        "correlation_id",
        "done",
        "throttle_ms",
        "timed",
        "version",
    )

    def __init__(self, connection: "Connection", header: RequestHeader) -> None:
        self._connection = connection
        self.api_key = header.api_key
        self.version = header.api_version
        self.correlation_id = header.correlation_id
        self.done = False
        self.throttle_ms = 0
        """Milliseconds for which the answer asks the client to wait, because of its quotas."""
        self.answer_pieces: list[Buffer] = []
        self.answer_bytes = 0
        self.timed: Timed | None = None
        """None if the request is not measured: of frequent requests only a sample is."""

    def answer(self, body: Sequence[Buffer], *, header_version: int | None = None) -> None:
        """Answer with `body`, once all earlier requests are answered."""
        if self.done:
            return
        length = len(body[0]) if len(body) == 1 else sum(map(len, body))
        head = framed_response_header(
            self.api_key, self.version if header_version is None else header_version, self.correlation_id, length
        )
        self.answer_pieces = [head, *body]
        self.answer_bytes = length = len(head) + length
        if self.timed is not None:
            self.timed.mark_ready()
        self.done = True
        connection = self._connection
        connection.answered += length
        if not connection.flushing:
            connection.flush()

    def failed(self, code: int) -> None:
        """Count that the request, or a part of it, was refused."""
        self._connection.failed(self.api_key, code)

    def complete_without_answer(self) -> None:
        """Complete the request without an answer, because the client expects none (Produce with acks=0)."""
        if self.timed is not None:
            self.timed.mark_ready()
        self.done = True
        self._connection.flush()

    def lose(self) -> None:
        """End the connection without an answer, because the outcome of the request is unknown and the client must find
        it out."""
        self._connection.drop()

    @property
    def peer(self) -> str:
        """The client's address, for the log."""
        return self._connection.peer

    @property
    def is_followed(self) -> bool:
        """Whether a later request of this client waits for its answer behind this one."""
        return self._connection.slots[-1] is not self


_numbers = itertools.count(1)


def _do_nothing() -> None:
    """Replaces the callback that ends a connection, once the connection is gone."""


class Connection:
    """The asyncio protocol of one client's socket, and the client's session with the broker.

    The class is a buffered protocol by its methods alone, which is how uvloop recognizes one. It cannot be compiled if
    it derives from asyncio's class, which is interpreted; only asyncio's own loops require that base class.
    """

    security_protocol = "PLAINTEXT"
    """The security.protocol that clients of this listener have to set; named to a client that speaks TLS to a port
    without TLS."""

    def __init__(
        self,
        handler: Handler,
        *,
        listener: str = "",
        default_stream: str = DEFAULT_STREAM,
        place: Place | None = None,
        identify: Identify | None = None,
    ) -> None:
        """`listener`: the listener by which the client connected; nodes may have other addresses for its clients.
        `default_stream`: the stream of topic names without a path. `place`: the connection's place among those that the
        node may have. `identify`: None if clients of the listener prove nothing."""
        self.number = next(_numbers)  # unique in this process
        self.listener = listener
        self.default_stream = default_stream
        self._handler = handler
        self._place = place
        self._identify = identify
        self.principal = NOBODY
        """The client's principal."""
        self.write_grants: Grants = {}
        self.read_grants: Grants = {}
        if place is not None:
            place.occupy(self.drop)
        self._is_new = place is not None
        """Whether the client has not sent a whole request yet."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._paced: PacedTransport | None = None
        """The transport of a client that speaks TLS, else None."""
        self._buffer = mmap.mmap(-1, ROOM_BYTES)  # costs memory only as far as a client fills it
        self._view = memoryview(self._buffer)
        self._room_bytes = ROOM_BYTES
        """How many bytes of the buffer may be filled."""
        self._most_bytes = MAX_REQUEST_BYTES
        """The longest request that is accepted, in bytes."""
        self._start = 0
        self._end = 0
        self._large: bytearray | mmap.mmap | None = None
        self._large_view = memoryview(b"")
        self._large_end = 0
        self._large_length = 0
        self._parked: asyncio.Task[None] | None = None
        self._parking: Coroutine[Any, Any, None] | None = None
        """The coroutine that parked the connection, until it begins to run."""
        self._paused_reading = False
        self._client_reads = True
        self._reading = False
        self._room = asyncio.Event()
        self._processing = False
        self.flushing = False
        self._finishing = False
        self._ended = False
        self.slots: deque[Slot] = deque()
        self.peer = "?"
        self.local: tuple[str, int] = ("", 0)
        self.client_id: str | None = None
        self.software: str = ""
        self.closed = False
        self.heard = True
        """Whether bytes have arrived since `IdleConnections` last looked."""
        self.waiting_since = 0.0
        """When the last bytes of requests that have not started arrived (time.monotonic); 0.0 means just now."""
        self.idle_since = 0.0
        """Loop time when `IdleConnections` last found the connection in use."""
        self._close_listeners: list[Callable[[], None]] = []
        self.answered = 0
        """Bytes of answers that are not written yet."""
        self.reading_pace: ReadingPace | None = None
        """The pace of the connection's fetches; None until a fetch had much to read."""
        self._waiting_fetches: list[Callable[[], None]] = []
        """Callbacks, each of which answers a fetch that waits on this connection."""
        self.refusals: Refusals | None = None
        """Batches that were refused temporarily; None if there have been none."""
        self.spent_s = 0.0
        """Seconds that the connection's requests took on the loop and that are not counted yet; kept only while there
        are quotas."""
        self._throttle: asyncio.TimerHandle | None = None
        self._held: set[asyncio.Task[None]] = set()
        self._delayed: tuple[RequestHeader, memoryview, Slot] | None = None
        """The request behind a waiting fetch whose answer has to be read from disk first."""

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio: a client has connected."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class, of the same shape
        local, peer = endpoints(transport)
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        if isinstance(local, tuple):
            self.local = (local[0], local[1])
        if self._identify is not None:
            self._transport = self._paced = PacedTransport(
                self._transport, hold=self._hold, drained=self.resume_writing
            )
            if not self._is_known(self._identify):
                return
        self._handler.connected(self)
        if self.closed:  # its place was given to another connection before it was set up
            self._transport.abort()

    def _is_known(self, identify: Identify) -> bool:
        """Identify the client. Returns False, with the connection ended, if the client is refused or its place was
        given away."""
        assert self._transport is not None
        if self._place is not None:
            self._place.occupy(self.drop)
        if self.closed:
            self._transport.abort()
            return False
        try:
            self.principal = identify(self._transport)
        except HeadraceError as error:
            self.fail(str(error))
        except Exception:
            log.exception("a client could not be identified", peer=self.peer)
            self.fail("internal error")
        return not self.closed

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: drop what waits on its behalf; what was appended stays."""
        self.closed = True
        if self._throttle is not None:
            self._throttle.cancel()
        if self._paced is not None:
            self._paced.forget()
        if self._place is not None:
            self._place.leave()
            self._place.occupy(_do_nothing)  # a reference to this object would keep its buffer until a collection
        if self._parked is not None and not self._finishing:
            self._parked.cancel()
            if self._parking is not None:
                self._parking.close()
        self.slots.clear()
        for task in self._held:
            task.cancel()
        for listener in list(self._close_listeners):
            listener()
        self._close_listeners.clear()
        self._handler.disconnected(self)
        self._transport = self._paced = None  # a reference cycle, which would keep buffers until it is collected

    def get_buffer(self, sizehint: int) -> memoryview:
        """The memory for the next bytes from the socket."""
        if self._large is not None:
            if self._large_end == len(self._large):
                self._grow(self._large)
            return self._large_view[self._large_end :]
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end > self._room_bytes // 2 and self._start:
            size = self._end - self._start
            self._buffer[:size] = self._buffer[self._start : self._end]
            self._start, self._end = 0, size
        return self._view[self._end : self._room_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        """Process the `nbytes` that have arrived."""
        self.heard = True
        self.waiting_since = 0.0
        if self._large is not None:
            self._large_end += nbytes
        else:
            self._end += nbytes
        self._process()

    def eof_received(self) -> bool:
        """The client has closed its sending side. Requests that have arrived are still handled, since a producer with
        acks=0 sends and closes; but the connection ends at once if a fetch waits, or if it is parked without
        `finish`."""
        if self._waiting_fetches or (self._parked is not None and not self._finishing):
            return False
        self._ended = True
        self._process()
        # TLS has no half-closed connections: answers that are ready now are still written, then the connection ends.
        return self.has_work and not self.is_tls

    @property
    def is_tls(self) -> bool:
        """Whether the client speaks TLS."""
        return self._transport is not None and self._transport.get_extra_info("ssl_object") is not None

    @property
    def has_work(self) -> bool:
        """Whether any request is under way."""
        return self._parked is not None or bool(self.slots) or self._throttle is not None

    def pause_writing(self) -> None:
        """The client does not read its answers: start no more requests for it."""
        self._client_reads = False
        if self._paced is not None:
            self._paced.pause()

    def _hold(self) -> None:
        self._client_reads = False

    def resume_writing(self) -> None:
        """The client reads again."""
        if self._paced is not None and self._paced.resume():
            return
        self._client_reads = True
        self._room.set()
        self._process()

    # --- requests

    def park(self, coroutine: Coroutine[Any, Any, None], *, finish: bool = False) -> None:
        """Start no more requests on this connection before `coroutine` has ended.

        `finish`: let the coroutine run to its end even if the client goes away, as it acts on behalf of records.
        """
        self._finishing = finish
        self._parking = coroutine
        self._parked = self._loop.create_task(self._unpark_after(coroutine))

    def throttle(self, seconds: float) -> None:
        """Start no more requests for `seconds` from now; requests under way continue. If the client closes meanwhile,
        the requests that it has sent are handled afterwards."""
        until = self._loop.time() + seconds
        if self.closed or (self._throttle is not None and self._throttle.when() >= until):
            return
        if self._throttle is not None:
            self._throttle.cancel()
        self._throttle = self._loop.call_at(until, self._throttled)

    def _throttled(self) -> None:
        self._throttle = None
        if not self.closed:
            self._process()
            self._end_if_done()

    @property
    def parked(self) -> bool:
        """Whether a request has parked the connection, so that no others start."""
        return self._parked is not None

    async def turn_to_read(self, slot: Reply) -> None:
        """Return when a large answer may be built for `slot`; call `read_over` once that is done or has failed.

        One such answer is built at a time, and none while the client has not read earlier answers: several waiting
        requests may have started before the first of them was read from disk.
        """
        while not self._may_read(slot):
            self._room.clear()
            await self._room.wait()
        self._reading = True

    def _may_read(self, slot: Reply) -> bool:
        if self._reading or not self._client_reads:
            return False
        # Answers queued behind the first one are written together with it.
        return self.answered < MAX_ANSWERED or self.slots[0] is slot

    def read_over(self) -> None:
        """Let the next large answer be built."""
        self._reading = False
        self._room.set()

    @property
    def is_behind(self) -> bool:
        """Whether the client has much to read, or will soon."""
        return self._reading or not self._client_reads or self.answered >= MAX_ANSWERED

    @property
    def has_waiting_fetches(self) -> bool:
        """Whether a fetch of this client waits for records."""
        return bool(self._waiting_fetches)

    def add_waiting_fetch(self, answer: Callable[[], None]) -> None:
        """Register a waiting fetch; `answer` answers it, and is called when another request arrives behind it."""
        self._waiting_fetches.append(answer)

    def remove_waiting_fetch(self, answer: Callable[[], None]) -> None:
        """Remove a waiting fetch, if it is registered."""
        if answer in self._waiting_fetches:
            self._waiting_fetches.remove(answer)

    def add_close_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the client goes away."""
        self._close_listeners.append(listener)

    def remove_close_listener(self, listener: Callable[[], None]) -> None:
        """Remove a listener, if it is registered."""
        if listener in self._close_listeners:
            self._close_listeners.remove(listener)

    def hold(self, task: asyncio.Task[None]) -> None:
        """Cancel `task` if the client goes away before the task ends."""
        self._held.add(task)
        task.add_done_callback(self._held.discard)

    async def _unpark_after(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._parking = None
        try:
            await coroutine
        except asyncio.CancelledError:
            raise
        except HeadraceError as error:
            self.fail(str(error))
        except Exception:
            log.exception("request failed", peer=self.peer)
            self.fail("internal error")
        finally:
            self._parked = None
        if not self.closed:
            self._process()
            self._end_if_done()

    def failed(self, api_key: int, code: int) -> None:
        """Count that a request, or a part of it, was refused."""
        self._handler.failed(api_key, code)

    def fail(self, reason: str) -> None:
        """End the connection; the reason goes to the log."""
        if not self.closed:
            log.warning("connection closed", peer=self.peer, client=self.client_id, reason=reason)
            self.drop()

    def drop(self) -> None:
        """End the connection at once; unanswered requests stay unanswered."""
        if not self.closed:
            self.closed = True
            if self._place is not None:
                self._place.leave()
            if self._transport is not None:
                self._transport.abort()

    def end(self) -> None:
        """Close the connection once all finished answers are written."""
        if self._transport is not None and not self.closed:
            self._transport.close()

    def flush(self) -> None:
        """Write the answers that are ready at the head of the queue: many at once, at the end of this turn of the loop,
        but immediately if the client has sent nothing else."""
        if self.flushing:
            return
        if len(self.slots) == 1 and not (self._processing or self._end > self._start or self._has_more):
            self._flush()
        else:
            self.flushing = True
            self._loop.call_soon(self._flush)

    @property
    def _has_more(self) -> bool:
        return self._paused_reading or self._delayed is not None or self._ended

    def _flush(self) -> None:
        self.flushing = False
        if self.closed or self._transport is None:
            return
        slots = self.slots
        pieces: list[Buffer] = []
        size = 0
        while slots and slots[0].done:
            slot = slots.popleft()
            pieces += slot.answer_pieces
            size += slot.answer_bytes
            if slot.timed is not None:
                slot.timed.mark_answered()
        self.answered -= size
        self._room.set()
        if size > _JOINED:
            self._transport.writelines(pieces)
        elif pieces:
            self._transport.write(b"".join(pieces))
        if self._end > self._start or self._paused_reading or self._delayed is not None:
            self._process()  # a request that arrived while too many were under way
        if self._ended:
            self._end_if_done()

    def _end_if_done(self) -> None:
        if self._ended and not self.has_work and not self.closed:
            self.end()

    def _process(self) -> None:
        if self._processing:
            return
        self._processing = True
        try:
            while not self.closed:
                if self._end == self._start and self._large is None and self._delayed is None:
                    break
                if not self._may_start():
                    break
                if self._delayed is not None:
                    delayed, self._delayed = self._delayed, None
                    self._handler.handle(self, *delayed)
                    continue
                request = self._next_request()
                if request is None:
                    break
                self._start_request(request)
        except HeadraceError as error:
            self.fail(str(error))
        except Exception:
            log.exception("request failed", peer=self.peer)
            self.fail("internal error")
        finally:
            self._processing = False
        if self._end > self._start or self._paused_reading or self._large is not None:
            self._note_waiting()
            self._pace_reading()

    def _note_waiting(self) -> None:
        """Note that received bytes wait from now on, unless some wait already."""
        if not self.waiting_since:
            self.waiting_since = monotonic()

    def _may_start(self) -> bool:
        return (
            self._parked is None
            and self._throttle is None
            and self._client_reads
            and len(self.slots) < MAX_UNDER_WAY
            and self.answered < MAX_ANSWERED
        )

    def _pace_reading(self) -> None:
        if self.closed or self._transport is None:
            return
        if self._large is not None:
            full = self._large_end == self._large_length
        else:
            full = self._end - self._start >= self._room_bytes // 2
        blocked = full and not self._may_start()
        if blocked and not self._paused_reading:
            self._transport.pause_reading()
        elif self._paused_reading and not blocked:
            self._transport.resume_reading()
        self._paused_reading = blocked

    def _next_request(self) -> memoryview | None:
        """The next whole request, in memory of its own; None if it is incomplete."""
        if self._large is not None:
            if self._large_end < self._large_length:
                return None
            request = self._large_view
            self._large = None
            self._large_view = memoryview(b"")
            return request
        available = self._end - self._start
        if available < 4:  # the length prefix
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, self._start)
        if not 0 < length <= self._most_bytes:
            if self._view[self._start : self._start + 2] == _TLS_RECORD:
                raise MalformedRequest(
                    f"the client speaks TLS, and this port does not: its security.protocol has to be "
                    f"{self.security_protocol} here, or it has to use the port of a listener with TLS"
                )
            raise MalformedRequest(f"a request of {length} bytes; the limit is {self._most_bytes}")
        begin = self._start + 4
        behind = available - 4 - length
        if behind >= 0:
            if behind:
                self._note_waiting()
            self._start = begin + length
            return memoryview(bytearray(self._view[begin : begin + length]))
        if length > self._room_bytes // 4:
            have = available - 4
            size = min(length, max(have * _GROWTH, self._room_bytes // 4))
            self._taking(size)
            large = mmap.mmap(-1, length) if length > _MAPPED else bytearray(size)
            large[:have] = self._view[begin : self._end]
            self._large, self._large_view, self._large_end = large, memoryview(large), have
            self._large_length = length
            self._start = self._end = 0
        return None

    def _grow(self, large: bytearray | mmap.mmap) -> None:
        """Enlarge the memory of the large request, which is full."""
        size = min(self._large_length, len(large) * _GROWTH)
        self._taking(size)
        grown = bytearray(size)
        grown[: self._large_end] = self._large_view
        self._large, self._large_view = grown, memoryview(grown)

    def _taking(self, size: int) -> None:
        """Hook: a request is about to get `size` bytes of memory of its own."""

    def _start_request(self, request: memoryview) -> None:
        header = read_request_header(request)
        self.client_id = header.client_id
        if self._is_new and self._place is not None:
            self._is_new = False
            self._place.proven()
        slot = Slot(self, header)
        self.slots.append(slot)
        if self._waiting_fetches and header.api_key != ApiKey.FETCH:
            for answer in list(self._waiting_fetches):
                answer()
            if self._parked is not None:
                self._note_waiting()
                self._delayed = (header, request, slot)
                return
        self._handler.handle(self, header, request, slot)
