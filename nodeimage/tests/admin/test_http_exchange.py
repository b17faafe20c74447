"""The protocol of one connection: requests in, answers out, without a socket."""

from http import HTTPStatus
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.admin.http_exchange import AT_ONCE, JSON, MAX_HEAD, Answer, HttpExchange, Request, text

HEAD = b"Host: node-1:8080\r\n\r\n"
GET = b"GET /livez HTTP/1.1\r\n" + HEAD


def heard(*pieces: bytes) -> Request | Answer | None:
    """The request or answer that results from bytes in pieces."""
    exchange = HttpExchange("10.0.0.7")
    found: Request | Answer | None = None
    for piece in pieces:
        exchange.receive(piece)
        found = exchange.next()
        if found is not None:
            break
    return found


def answered(raw: bytes, answer: Answer) -> tuple[str, dict[str, str], bytes, bool]:
    """Status line, headers and body of the answer to a request, and whether another may follow."""
    exchange = HttpExchange("10.0.0.7")
    exchange.receive(raw)
    assert isinstance(exchange.next(), Request)
    sent, goes_on = exchange.answer(answer)
    head, _, body = sent.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    return status, dict(line.split(": ", 1) for line in lines), body, goes_on


@given(st.lists(st.integers(1, len(GET)), max_size=8))
def test_a_request_is_the_same_in_however_many_pieces_it_comes(cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), len(GET)]
    pieces = [GET[begin:end] for begin, end in pairwise(bounds)]
    request = heard(*pieces)
    assert isinstance(request, Request)
    assert (request.method, request.path, request.remote, request.has_body) == ("GET", "/livez", "10.0.0.7", False)
    assert request.headers == {"host": "node-1:8080"}


def test_requests_that_come_ahead_wait_for_the_answer_before() -> None:
    exchange = HttpExchange("")
    exchange.receive(b"".join(b"GET /%d HTTP/1.1\r\n" % number + HEAD for number in range(1_000)))
    for number in range(1_000):
        request = exchange.next()
        assert isinstance(request, Request)
        assert request.path == f"/{number}"
        assert exchange.answer(text("ok"))[1]
    assert exchange.next() is None
    assert not exchange.is_begun


def test_a_part_of_a_request_is_told_from_none() -> None:
    exchange = HttpExchange("")
    assert exchange.next() is None
    assert not exchange.is_begun
    exchange.receive(b"GET /li")
    assert exchange.next() is None
    assert exchange.is_begun


def test_an_answer_has_its_length_type_and_time() -> None:
    status, headers, body, goes_on = answered(GET, Answer(HTTPStatus.OK, b"{}", content_type=JSON))
    assert (status, body, goes_on) == ("HTTP/1.1 200 OK", b"{}", True)
    assert headers.pop("Date").endswith(" GMT")
    assert headers == {"Content-Type": JSON, "Content-Length": "2"}


def test_the_answer_to_a_head_is_that_to_a_get_without_its_body() -> None:
    status, headers, body, goes_on = answered(b"HEAD /livez HTTP/1.1\r\n" + HEAD, text("ok"))
    assert (status, headers["Content-Length"], body, goes_on) == ("HTTP/1.1 200 OK", "3", b"", True)


@pytest.mark.parametrize(
    ("raw", "closes", "goes_on"),
    [
        (GET, False, True),
        (GET, True, False),
        (b"GET /livez HTTP/1.1\r\nConnection: close\r\n" + HEAD, False, False),
        (b"GET /livez HTTP/1.1\r\nConnection: keep-alive, Close\r\n" + HEAD, False, False),
        (b"GET /livez HTTP/1.0\r\n\r\n", False, False),
        (b"GET /livez HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", False, False),
        (b"POST /livez HTTP/1.1\r\nContent-Length: 0\r\n" + HEAD, False, True),
        (b"POST /livez HTTP/1.1\r\nContent-Length: 1\r\n" + HEAD, False, False),
        (b"POST /livez HTTP/1.1\r\nContent-Length: 1\r\n" + HEAD + b"x", False, False),
        (b"POST /livez HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + HEAD + b"0\r\n\r\n", False, False),
        (b"GET /livez HTTP/1.1\r\nUpgrade: h2c\r\nConnection: upgrade\r\n" + HEAD, False, False),
        (b"CONNECT node-1:8080 HTTP/1.1\r\n" + HEAD, True, False),
    ],
)
def test_a_connection_goes_on_where_both_sides_know_where_a_message_ends(
    raw: bytes, closes: bool, goes_on: bool
) -> None:
    answer = Answer(HTTPStatus.NOT_FOUND, b"not here\n", closes=closes)
    _, headers, _, kept = answered(raw, answer)
    assert kept == goes_on
    assert (headers.get("Connection") == "close") == (not goes_on)


@pytest.mark.parametrize(
    ("headers", "has_body"),
    [
        (b"", False),
        (b"Content-Length: 0\r\n", False),
        (b"Content-Length: 00\r\n", False),
        (b"Content-Length: 5\r\n", True),
        (b"Content-Length: 5, 5\r\n", True),
        (b"Content-Length: 5\r\nContent-Length: 5\r\n", True),
        (b"Transfer-Encoding: chunked\r\n", True),
        (b"Transfer-Encoding: CHUNKED\r\nContent-Length: 0\r\n", True),
        (b"Content-Length: 5\r\nExpect: 100-Continue\r\n", True),
        (b"Expect: 100-continue\r\n", False),
    ],
)
def test_a_body_is_seen_whether_it_comes_or_not(headers: bytes, has_body: bool) -> None:
    request = heard(b"POST /hand-over HTTP/1.1\r\n" + headers + HEAD)
    assert isinstance(request, Request)
    assert request.has_body == has_body


@pytest.mark.parametrize(
    ("target", "path", "host"),
    [
        (b"/hand-over", "/hand-over", "node-1:8080"),
        (b"/hand%2dover", "/hand%2dover", "node-1:8080"),
        (b"//hand-over", "//hand-over", "node-1:8080"),
        (b"/a/../hand-over#x", "/a/../hand-over#x", "node-1:8080"),
        (b"*", "*", "node-1:8080"),
        (b"node-1:8080", "node-1:8080", "node-1:8080"),
        (b"http://other:1/hand-over?apply=1", "/hand-over", "other:1"),
        (b"HTTPS://user@other/hand-over", "/hand-over", "other"),
        (b"http://other", "/", "other"),
        (b"http:///hand-over", "/hand-over", ""),
    ],
)
def test_a_path_is_letter_by_letter_and_a_target_with_a_host_names_the_host(
    target: bytes, path: str, host: str
) -> None:
    request = heard(b"POST " + target + b" HTTP/1.1\r\n" + HEAD)
    assert isinstance(request, Request)
    assert (request.path, request.headers["host"]) == (path, host)


@pytest.mark.parametrize(
    ("query", "values"),
    [
        (b"", {}),
        (b"?", {}),
        (b"?apply=1", {"apply": "1"}),
        (b"?apply=0&apply=1", {"apply": "0"}),
        (b"?apply&other=a%20b", {"apply": "", "other": "a b"}),
        (b"?apply=%", {"apply": "%"}),
    ],
)
def test_of_a_query_the_first_values_count(query: bytes, values: dict[str, str]) -> None:
    request = heard(b"POST /recover-store" + query + b" HTTP/1.1\r\n" + HEAD)
    assert isinstance(request, Request)
    assert request.query == values


def test_a_header_that_comes_twice_has_all_of_its_values() -> None:
    request = heard(b"GET / HTTP/1.1\r\nSec-Fetch-Site: none\r\nSEC-FETCH-SITE: cross-site\r\nX: \xff\r\n" + HEAD)
    assert isinstance(request, Request)
    assert request.headers == {"sec-fetch-site": "none, cross-site", "x": "\udcff", "host": "node-1:8080"}
    assert "cross-site" not in repr(request)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"hush\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET /hush\r\n\r\n", 400),
        (b"GET /a hush HTTP/1.1\r\n" + HEAD, 400),
        (b"GET /hush\x00 HTTP/1.1\r\n" + HEAD, 400),
        (b"GET /hush\xff HTTP/1.1\r\n" + HEAD, 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET /livez HTTP/1.1\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost: hush\r\n" + HEAD, 400),
        (b"GET /livez HTTP/1.1\r\nHush : x\r\n" + HEAD, 400),
        (b"GET /livez HTTP/1.1\r\n hush: x\r\n" + HEAD, 400),
        (b"GET /livez HTTP/1.1\r\nX: hush\x00\r\n" + HEAD, 400),
        (b"GET /livez HTTP/1.1\r\nhush\r\n" + HEAD, 400),
        (b"POST /livez HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n" + HEAD, 400),
        (b"POST /livez HTTP/1.1\r\nContent-Length: 5, 6\r\n" + HEAD, 400),
        (b"POST /livez HTTP/1.1\r\nContent-Length: -1\r\n" + HEAD, 400),
        (b"POST /livez HTTP/1.1\r\nContent-Length: 0x10\r\n" + HEAD, 400),
        (b"POST /livez HTTP/1.1\r\nContent-Length: " + b"9" * 50 + b"\r\n" + HEAD, 400),
        (b"POST /livez HTTP/1.1\r\nTransfer-Encoding: hush\r\n" + HEAD, 501),
        (b"POST /livez HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n" + HEAD, 501),
        (b"GET /livez HTTP/1.1\r\nExpect: hush\r\n" + HEAD, 417),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET /" + b"x" * (MAX_HEAD + AT_ONCE) + b" HTTP/1.1\r\n" + HEAD, 431),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * (MAX_HEAD + AT_ONCE) + b"\r\n" + HEAD, 431),
        (b"GET / HTTP/1.1\r\n" + b"a:b\r\n" * MAX_HEAD + HEAD, 431),
    ],
)
def test_what_is_no_request_is_told_so_and_ends_the_connection(raw: bytes, status: int) -> None:
    exchange = HttpExchange("")
    exchange.receive(raw)
    refused = exchange.next()
    assert isinstance(refused, Answer)
    assert refused.status == status
    sent, goes_on = exchange.answer(refused)
    assert not goes_on
    assert sent.startswith(b"HTTP/1.1 %d " % status)
    assert b"\r\nConnection: close\r\n" in sent
    assert b"hush" not in sent.lower()
    assert len(sent) < 400


def test_what_is_broken_after_a_head_gets_its_whole_answer() -> None:
    exchange = HttpExchange("")
    exchange.receive(b"HEAD /livez HTTP/1.1\r\n" + HEAD + b"nothing\r\n\r\n")
    assert isinstance(exchange.next(), Request)
    assert exchange.answer(text("ok"))[1]
    refused = exchange.next()
    assert isinstance(refused, Answer)
    assert exchange.answer(refused)[0].endswith(refused.body)


@given(st.binary(max_size=300), st.binary(max_size=50))
def test_whatever_comes_is_a_request_or_refused_or_waits(first: bytes, last: bytes) -> None:
    for raw in (first, GET[: len(last)] + first, b"POST / HTTP/1.1\r\n" + first + b"\r\n" + HEAD):
        exchange = HttpExchange("")
        exchange.receive(raw)
        for _ in range(100):
            found = exchange.next()
            if found is None:
                break
            goes_on = exchange.answer(found if isinstance(found, Answer) else text("ok"))[1]
            if not goes_on:
                break
