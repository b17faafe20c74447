"""SCRAM's client against the RFC's own exchange, and against dishonest servers."""

import pytest

from headrace.security.scram import ScramClient, ScramFailed

SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"


def rfc7677() -> ScramClient:
    return ScramClient("SCRAM-SHA-256", "user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO")


def test_the_exchange_of_rfc_7677_comes_out_byte_for_byte() -> None:
    client = rfc7677()
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert client.final(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    client.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_a_server_that_does_not_know_the_password_is_found_out() -> None:
    client = rfc7677()
    client.final(SERVER_FIRST)
    with pytest.raises(ScramFailed, match="does not know the password"):
        client.verify(b"v=AAAATRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_a_last_word_before_any_proof_proves_nothing() -> None:
    with pytest.raises(ScramFailed, match="does not know the password"):
        rfc7677().verify(b"v=")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "does not begin with the client's"),
        (b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "does not begin with the client's"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=2147483647", "2147483647 iterations"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1", "1 iterations"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=!,i=4096", "not SCRAM's"),
        (b"", "not SCRAM's"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_first_message_that_is_none_is_refused(said: bytes, why: str) -> None:
    with pytest.raises(ScramFailed, match=why):
        rfc7677().final(said)


def test_a_name_with_commas_and_equal_signs_is_written_as_scram_has_it() -> None:
    assert ScramClient("SCRAM-SHA-512", "a,b=c", "x", nonce="n").first() == b"n,,n=a=2Cb=3Dc,r=n"
