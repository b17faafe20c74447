"""The client's half of SASL, against a minimal server."""

import struct
from collections.abc import Callable

import pytest

from headrace.base.errors import MalformedRequest
from headrace.kafka_client.authentication import Authenticated, Request, following, steps
from headrace.kafka_client.errors import SourceRefuses
from headrace.security.client_security import Security
from headrace.wire.header import RequestHeader
from kit.client_calls import sasl

VERSIONS = {17: (0, 1), 36: (0, 2)}


def run(security: Security, answer: Callable[[Request], bytes]) -> tuple[Authenticated, list[Request]]:
    """The result, and the requests."""
    assert security.mechanism is not None
    running = steps(security, security.mechanism, address="h:1", versions=VERSIONS)
    asked = [next(running)]
    while isinstance(after := following(running, memoryview(answer(asked[-1]))), Request):
        asked.append(after)
    return after, asked


def server(mechanism: str, *, lifetime_ms: int = 0) -> Callable[[Request], bytes]:
    script = sasl(mechanism, "s3cret", lifetime_ms=lifetime_ms)

    def answer(request: Request) -> bytes:
        header = RequestHeader(request.api_key, request.version, 1, "test", 0)
        said = script(header, memoryview(request.body))
        assert isinstance(said, bytes)
        return said

    return answer


@pytest.mark.parametrize(("mechanism", "requests"), [("PLAIN", 2), ("SCRAM-SHA-256", 3)])
def test_who_knows_the_password_is_let_in(mechanism: str, requests: int) -> None:
    security = Security(mechanism=mechanism, username="alice", password="s3cret")
    done, asked = run(security, server(mechanism))
    assert done == Authenticated(None)
    assert [each.api_key for each in asked] == [17, *[36] * (requests - 1)]


def test_a_session_of_some_time_is_used_for_less() -> None:
    security = Security(mechanism="PLAIN", username="alice", password="s3cret")
    done, _ = run(security, server("PLAIN", lifetime_ms=10_000))
    assert done.life_s == pytest.approx(8.5)
    done, _ = run(security, server("PLAIN", lifetime_ms=2**62))
    assert done.life_s == 86_400
    done, _ = run(security, server("PLAIN", lifetime_ms=1))
    assert done.life_s == 1


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_who_does_not_know_it_is_named_and_what_he_said_is_not(mechanism: str) -> None:
    security = Security(mechanism=mechanism, username="alice", password="gue55")
    with pytest.raises(SourceRefuses, match="h:1: 'alice' is refused: bad secrets") as refused:
        run(security, server(mechanism))
    assert "gue55" not in str(refused.value)


def test_a_mechanism_that_is_off_is_answered_with_those_that_are_on() -> None:
    security = Security(mechanism="SCRAM-SHA-512", username="alice", password="s3cret")
    with pytest.raises(SourceRefuses, match=r"does not accept SCRAM-SHA-512: it offers PLAIN \(sasl.mechanism\)"):
        run(security, server("PLAIN"))


def test_a_port_without_sasl_says_so() -> None:
    security = Security(mechanism="PLAIN", username="alice", password="s3cret")
    with pytest.raises(SourceRefuses, match="does not use SASL"):
        run(security, lambda _: struct.pack(">hi", 34, 0))


def test_a_server_that_does_not_know_the_password_is_no_server_of_ours() -> None:
    security = Security(mechanism="SCRAM-SHA-256", username="alice", password="s3cret")
    honest = server("SCRAM-SHA-256")

    def answer(request: Request) -> bytes:
        said = honest(request)
        return said if b"v=" not in said else said.replace(b"v=", b"v=AAAA", 1)[: len(said)]

    with pytest.raises(SourceRefuses, match=r"it is not who it claims to be|is not SCRAM's"):
        run(security, answer)


@pytest.mark.parametrize("answer", [b"", b"\x00", struct.pack(">hi", 0, 2**31 - 1), struct.pack(">hih", 0, 1, 500)])
def test_an_answer_that_is_none_is_malformed(answer: bytes) -> None:
    security = Security(mechanism="PLAIN", username="alice", password="s3cret")
    with pytest.raises(MalformedRequest):
        run(security, lambda _: answer)
