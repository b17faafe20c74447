"""The HTTP protocol of one connection of the HTTP port: requests in, answers out, by h11. Pure: no I/O.

    bytes -> receive -> next -> Request -> (the caller answers) -> answer -> bytes, and whether another may follow

Invariants:
1. One request at a time: pipelined requests stay unread until the one before has been answered.
2. A request's head is limited to `MAX_HEAD` bytes, plus one piece; a longer one is refused before more is stored.
3. No body is read. If a request announces one, its connection closes with the answer.
4. What is not HTTP/1.0 or 1.1 gets an answer that says so, and that repeats nothing of what was received.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl

import h11

MAX_HEAD: Final = 16_384
"""The maximum number of bytes of a request's line and headers; a token may have a quarter of that."""
AT_ONCE: Final = 4_096
"""Bytes that are passed to h11 in one piece, before its size check."""
TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json; charset=utf-8"
_VERSIONS: Final = (b"1.0", b"1.1")
_SCHEMES: Final = ("http://", "https://")
_BROKEN: Final[Mapping[HTTPStatus, str]] = {
    HTTPStatus.BAD_REQUEST: "this is not a valid HTTP request",
    HTTPStatus.EXPECTATION_FAILED: "only 100-continue is supported",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: f"the request's head has more than {MAX_HEAD} bytes",
    HTTPStatus.NOT_IMPLEMENTED: "the transfer encoding is not supported",
    HTTPStatus.HTTP_VERSION_NOT_SUPPORTED: "this port speaks HTTP/1.1",
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request without its body."""

    method: str
    path: str
    """As received; nothing in it is decoded."""
    query: Mapping[str, str] = field(default_factory=dict)
    """The first value of each parameter."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers by lower-case name; the values of a repeated header are joined with commas."""
    remote: str = ""
    """The client's address."""
    has_body: bool = False
    """Whether the request announces a body."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    status: HTTPStatus
    body: bytes = field(repr=False)
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)
    closes: bool = False
    """Whether the connection closes after it."""


def text(line: str, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    """An answer of one line."""
    return Answer(status, f"{line}\n".encode())


class HttpExchange:
    """The requests and answers of one connection."""

    def __init__(self, remote: str) -> None:
        """`remote`: the client's address."""
        self._remote = remote
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self._method = b""
        self._unread = bytearray()
        """Received bytes that h11 has not been given yet."""

    @property
    def is_begun(self) -> bool:
        """Whether a request has arrived in part."""
        return bool(self._http.trailing_data[0]) or bool(self._unread)

    def receive(self, data: bytes) -> None:
        """Take in bytes received from the client."""
        self._unread += data

    def next(self) -> Request | Answer | None:
        """The next request; an Answer to malformed input; None if more bytes are needed. The one before must be
        answered."""
        self._method = b""
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA and self._unread:
                self._http.receive_data(bytes(self._unread[:AT_ONCE]))
                del self._unread[:AT_ONCE]
            if not isinstance(event, h11.Request):
                return None
            self._method = event.method
            if event.http_version not in _VERSIONS:
                return _broken(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
            request = self._request(event)
            if not request.has_body:
                self._http.next_event()  # the end of the message
        except h11.RemoteProtocolError as error:
            return _broken(HTTPStatus(error.error_status_hint))
        if event.http_version == b"1.1" and request.headers.get("expect", "100-continue").lower() != "100-continue":
            return _broken(HTTPStatus.EXPECTATION_FAILED)
        return request

    def answer(self, answer: Answer) -> tuple[bytes, bool]:
        """The answer to the last request as bytes to send, and whether another request may follow."""
        headers = {
            "Date": formatdate(usegmt=True),
            "Content-Type": answer.content_type,
            "Content-Length": str(len(answer.body)),
            **answer.headers,
        }
        if answer.closes or self._http.their_state is not h11.DONE:
            headers["Connection"] = "close"
        reason = answer.status.phrase.encode()
        sent = self._http.send(h11.Response(status_code=answer.status, headers=list(headers.items()), reason=reason))
        if self._method != b"HEAD":
            sent += self._http.send(h11.Data(data=answer.body))
        sent += self._http.send(h11.EndOfMessage())
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return sent, False
        self._http.start_next_cycle()
        return sent, True

    def _request(self, event: h11.Request) -> Request:
        headers: dict[str, str] = {}
        for raw_name, raw in event.headers:
            name, value = raw_name.decode("ascii"), raw.decode("utf-8", "surrogateescape")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        target, _, query = event.target.decode("ascii").partition("?")
        authority, path = _split(target)
        if authority is not None:
            headers["host"] = authority  # RFC 9112, 3.2.2: it takes precedence
        return Request(
            method=event.method.decode("ascii"),
            path=path,
            query=dict(reversed(parse_qsl(query, keep_blank_values=True))),
            headers=headers,
            remote=self._remote,
            has_body="transfer-encoding" in headers or int(headers.get("content-length", "0")) != 0,
        )


def _split(target: str) -> tuple[str | None, str]:
    """The authority of a target in absolute form, or None, and the path."""
    scheme = next((each for each in _SCHEMES if target.lower().startswith(each)), None)
    if scheme is None:
        return None, target
    authority, slash, path = target[len(scheme) :].partition("/")
    return authority.rpartition("@")[2], f"/{path}" if slash else "/"


def _broken(status: HTTPStatus) -> Answer:
    return Answer(status, f"{_BROKEN.get(status, status.phrase)}\n".encode(), closes=True)
