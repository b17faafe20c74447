"""At which listeners clients that prove nothing are admitted."""

import contextlib
from pathlib import Path

import pytest

from headrace.node.open_listeners import check_open
from headrace.security.listener_config import ListenersRefused, parse

MAIN = '[[listener]]\nname = "main"\nmain = true\nprotocol = "SASL_PLAINTEXT"\nmechanisms = "PLAIN"\n'
PLAIN = '[[listener]]\nname = "more"\nport = 1\nprotocol = "PLAINTEXT"\n'


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_loopback_is_open(address: str) -> None:
    check_open(address, named=["a"], configured=parse(PLAIN, folder=Path()), allowed=False, secure=False)


@pytest.mark.parametrize(
    ("named", "text", "refused"),
    [
        ((), "", "the listener of --port"),
        ((), MAIN, None),
        (("external",), MAIN, "--listener external"),
        ((), MAIN + PLAIN, r"listener more \(PLAINTEXT\)"),
    ],
)
@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.1.2.3", "node-1.example"])
def test_elsewhere_somebody_has_to_say_so(address: str, named: tuple[str, ...], text: str, refused: str | None) -> None:
    configured = parse(text, folder=Path()) if text else ()
    expected = pytest.raises(ListenersRefused, match=f"^{refused} lets anybody in who reaches {address}: ")
    with expected if refused else contextlib.nullcontext():
        check_open(address, named=named, configured=configured, allowed=False, secure=False)
    for allowed, secure in ((True, False), (False, True)):
        check_open(address, named=named, configured=configured, allowed=allowed, secure=secure)
