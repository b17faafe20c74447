"""What a client and the HTTP port say to each other on one connection: requests in, answers out, by h11. Pure.

    bytes -> receive -> next -> Request -> (somebody answers) -> answer -> bytes, and whether another may follow

Invariants:
1. One request at a time: what a client sends ahead stays as it is until the one before it has been answered.
2. A request's head has `MOST_HEAD` bytes, or a piece more; a longer one is refused before more of it is kept.
3. No body is read. Whatever a request announces, its connection ends with the answer.
4. What is not HTTP/1.0 or 1.1 gets an answer that says so, and has nothing of what came in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl

import h11

MOST_HEAD: Final = 16_384
"""Bytes of a request's line and headers; a token has a quarter of that."""
AT_ONCE: Final = 4_096
"""Bytes that h11 is given before it is asked whether they are too many."""
TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json; charset=utf-8"
_VERSIONS: Final = (b"1.0", b"1.1")
_SCHEMES: Final = ("http://", "https://")
_BROKEN: Final[Mapping[HTTPStatus, str]] = {
    HTTPStatus.BAD_REQUEST: "this is not a request of HTTP/1.1",
    HTTPStatus.EXPECTATION_FAILED: "nothing but 100-continue is known",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: f"the request's head has more than {MOST_HEAD} bytes",
    HTTPStatus.NOT_IMPLEMENTED: "the transfer encoding is not known",
    HTTPStatus.HTTP_VERSION_NOT_SUPPORTED: "this port speaks HTTP/1.1",
}


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked, but for a body."""

    method: str
    path: str
    """As it came, letter by letter: nothing in it is decoded."""
    query: Mapping[str, str] = field(default_factory=dict)
    """The first value of each."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By names in lower case; one that came several times has all of its values, with commas between."""
    remote: str = ""
    """The address that it comes from."""
    has_body: bool = False
    """Whether it announces one."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request is answered."""

    status: HTTPStatus
    body: bytes = field(repr=False)
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)
    closes: bool = False
    """No other request is taken on its connection."""


def text(line: str, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    """An answer of one line."""
    return Answer(status, f"{line}\n".encode())


class HttpExchange:
    """Of one connection."""

    def __init__(self, remote: str) -> None:
        """`remote`: the client's address."""
        self._remote = remote
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD)
        self._method = b""
        self._unread = bytearray()
        """What h11 has not been given yet."""

    @property
    def is_begun(self) -> bool:
        """Whether a part of a request is there, and the rest is not."""
        return bool(self._http.trailing_data[0]) or bool(self._unread)

    def receive(self, data: bytes) -> None:
        """Take what came from the client."""
        self._unread += data

    def next(self) -> Request | Answer | None:
        """The next request; or the answer to what is none; None: more has to come. The one before is answered."""
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
                self._http.next_event()  # the message's end
        except h11.RemoteProtocolError as error:
            return _broken(HTTPStatus(error.error_status_hint))
        if event.http_version == b"1.1" and request.headers.get("expect", "100-continue").lower() != "100-continue":
            return _broken(HTTPStatus.EXPECTATION_FAILED)
        return request

    def answer(self, answer: Answer) -> tuple[bytes, bool]:
        """The answer to the request that came last, as it is sent; whether another request may follow."""
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
            headers["host"] = authority  # RFC 9112, 3.2.2: it is what counts
        return Request(
            method=event.method.decode("ascii"),
            path=path,
            query=dict(reversed(parse_qsl(query, keep_blank_values=True))),
            headers=headers,
            remote=self._remote,
            has_body="transfer-encoding" in headers or int(headers.get("content-length", "0")) != 0,
        )


def _split(target: str) -> tuple[str | None, str]:
    """The authority that a target of absolute form names, and the path; None: it names none."""
    scheme = next((each for each in _SCHEMES if target.lower().startswith(each)), None)
    if scheme is None:
        return None, target
    authority, slash, path = target[len(scheme) :].partition("/")
    return authority.rpartition("@")[2], f"/{path}" if slash else "/"


def _broken(status: HTTPStatus) -> Answer:
    return Answer(status, f"{_BROKEN.get(status, status.phrase)}\n".encode(), closes=True)
