"""Which requests are allowed, by the client's address and by what it shows."""

from http import HTTPStatus
from pathlib import Path

import pytest

from headrace.admin.http_guard import MAX_TOKEN, Refusal, read_token, refusal

ELSEWHERE, HERE = "10.0.0.7", "127.0.0.1"
TOKEN = b"open-sesame"
SHOWN = {"authorization": "Bearer open-sesame"}


def asked(
    headers: dict[str, str], *, remote: str = ELSEWHERE, is_open: bool = False, token: bytes = TOKEN
) -> HTTPStatus | None:
    refused = refusal(headers, remote=remote, is_open=is_open, names=["node-1.example", "10.0.0.1"], token=token)
    return None if refused is None else refused.status


@pytest.mark.parametrize(
    ("address", "is_here"),
    [
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.7", False),
        ("fe80::1%eth0", False),
        ("", False),
        ("localhost", False),
    ],
)
def test_this_machine_is_its_loopback_addresses(address: str, is_here: bool) -> None:
    assert (asked({}, remote=address) is None) == is_here


@pytest.mark.parametrize(
    "shown",
    [
        "",
        "open-sesame",
        "Bearer",
        "Bearer ",
        "Bearer open-sesam",
        "Bearer open-sesame2",
        "Bearer OPEN-SESAME",
        "Basic open-sesame",
        "Bearer \udcff",
    ],
)
def test_another_token_is_none(shown: str) -> None:
    assert asked({"authorization": shown}) is HTTPStatus.UNAUTHORIZED
    assert asked({"authorization": shown}, token=b"") is HTTPStatus.FORBIDDEN


def test_the_token_opens_what_it_is_for() -> None:
    assert asked(SHOWN) is None
    assert asked({"authorization": "bearer  open-sesame "}) is None
    assert asked(SHOWN, token=b"") is HTTPStatus.FORBIDDEN
    assert asked({}, is_open=True, token=b"") is None
    assert asked({**SHOWN, "origin": "https://elsewhere.example"}) is HTTPStatus.FORBIDDEN


@pytest.mark.parametrize(
    ("host", "is_named"),
    [
        ("localhost", True),
        ("LocalHost:8080", True),
        ("127.0.0.1:8080", True),
        ("[::1]:8080", True),
        ("[::1]", True),
        ("node-1.example:8080", True),
        ("10.0.0.1:8080", True),
        ("", False),
        (":8080", False),
        ("rebound.example", False),
        ("localhost.rebound.example", False),
        ("127.0.0.1.rebound.example:8080", False),
        ("0.0.0.0:8080", False),
        ("[::]:8080", False),
        ("10.0.0.2", False),
        ("[node-1.example", True),
    ],
)
def test_a_name_that_leads_here_is_not_this_machines(host: str, is_named: bool) -> None:
    for is_open in (True, False):
        assert (asked({"host": host}, remote=HERE, is_open=is_open) is None) == is_named
        assert asked({**SHOWN, "host": host}, is_open=is_open) is None  # remote clients may use any host name


def test_a_client_of_before_hosts_had_names_is_no_browser() -> None:
    assert asked({}, remote=HERE) is None


def test_a_refusal_does_not_show_the_token() -> None:
    refused = refusal(SHOWN, remote=ELSEWHERE, is_open=False, names=(), token=b"hush-hush")
    assert isinstance(refused, Refusal)
    assert "hush" not in refused.reason
    assert "sesame" not in refused.reason


def test_a_token_is_what_stands_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    assert read_token(None) == b""
    with pytest.raises(FileNotFoundError):
        read_token(file)
    for content, token in (
        (b"", b""),
        (b" \n", b""),
        (b"open-sesame\n", TOKEN),
        (b"t" * MAX_TOKEN, b"t" * MAX_TOKEN),
    ):
        file.write_bytes(content)
        assert read_token(file) == token
    file.write_bytes(b"t" * (MAX_TOKEN + 1))
    with pytest.raises(ValueError, match="more than 4096 bytes"):
        read_token(file)
