"""Stored credentials: how they are created, which are invalid, and that they do not reveal their contents."""

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.security.sasl.scram_credential import (
    DEFAULT_ITERATIONS,
    SALT_BYTES,
    ScramCredential,
    credential_of_unknown,
)
from headrace.security.scram_common import HASHES, salted_password

MECHANISMS = pytest.mark.parametrize("mechanism", HASHES)


@MECHANISMS
def test_a_record_knows_its_mechanism_and_fits_its_password_alone(mechanism: str) -> None:
    record = ScramCredential.made_of("Gähnender Löwe", mechanism)
    assert record.mechanism == mechanism
    assert record.fits_password("Gähnender Löwe")
    assert not record.fits_password("Gähnender Löwe ")
    assert not record.fits_password("")


@MECHANISMS
def test_a_password_that_the_client_has_salted_makes_the_same_record(mechanism: str) -> None:
    made = ScramCredential.made_of("pencil", mechanism, 8192, b"salt of the client")
    salted = salted_password(HASHES[mechanism], b"pencil", b"salt of the client", 8192)
    sent = ScramCredential.from_salted_password(
        salted, mechanism=mechanism, iterations=8192, salt=b"salt of the client"
    )
    assert sent == made


def test_two_records_of_one_password_differ() -> None:
    one, other = (ScramCredential.made_of("pencil", "SCRAM-SHA-256") for _ in range(2))
    assert one.salt != other.salt
    assert one.stored_key != other.stored_key


@pytest.mark.parametrize("iterations", [4095, 16385, 0, -1])
def test_too_few_and_too_many_iterations_are_refused_before_any_hashing(iterations: int) -> None:
    with pytest.raises(KafkaError) as refused:
        ScramCredential.made_of("pencil", "SCRAM-SHA-256", iterations)
    assert refused.value.code is Code.UNACCEPTABLE_CREDENTIAL
    with pytest.raises(KafkaError) as refused:
        ScramCredential.from_salted_password(bytes(32), mechanism="SCRAM-SHA-256", iterations=iterations, salt=b"salt")
    assert refused.value.code is Code.UNACCEPTABLE_CREDENTIAL


@pytest.mark.parametrize("iterations", [4096, 16384])
def test_the_least_and_the_most_iterations_are_taken(iterations: int) -> None:
    assert ScramCredential(salt=b"s", stored_key=bytes(32), server_key=bytes(32), iterations=iterations)


@pytest.mark.parametrize(
    "wrong",
    [
        {"salt": b""},
        {"salt": bytes(1025)},
        {"stored_key": bytes(31)},
        {"server_key": bytes(64)},
        {"stored_key": b"", "server_key": b""},
    ],
    ids=str,
)
def test_a_record_of_other_lengths_is_refused(wrong: dict[str, bytes]) -> None:
    fields = {"salt": b"salt", "stored_key": bytes(32), "server_key": bytes(32), **wrong}
    with pytest.raises(KafkaError) as refused:
        ScramCredential(**fields, iterations=4096)  # type: ignore[arg-type]
    assert refused.value.code is Code.UNACCEPTABLE_CREDENTIAL


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_a_salted_password_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(KafkaError, match="length of the mechanism's hash"):
        ScramCredential.from_salted_password(bytes(length), mechanism="SCRAM-SHA-256", iterations=4096, salt=b"salt")


def test_an_unknown_mechanism_is_refused() -> None:
    with pytest.raises(KafkaError) as refused:
        ScramCredential.made_of("pencil", "SCRAM-SHA-1")
    assert refused.value.code is Code.UNSUPPORTED_SASL_MECHANISM


@pytest.mark.parametrize("password", ["", "half a \udc80 letter"])
def test_a_password_that_is_none_is_refused(password: str) -> None:
    with pytest.raises(KafkaError) as refused:
        ScramCredential.made_of(password, "SCRAM-SHA-256")
    assert refused.value.code is Code.UNACCEPTABLE_CREDENTIAL
    assert refused.value.__context__ is None  # Python's own error would hold the password


def test_a_record_does_not_tell_what_it_holds() -> None:
    record = ScramCredential.made_of("pencil", "SCRAM-SHA-512", 5000)
    assert repr(record) == str(record) == "ScramCredential(SCRAM-SHA-512, iterations=5000)"


@MECHANISMS
def test_the_record_of_an_unknown_user_looks_like_a_new_users_and_stays_the_same(mechanism: str) -> None:
    unknown = credential_of_unknown(b"key", "mallory", mechanism)
    known = ScramCredential.made_of("pencil", mechanism)
    assert unknown == credential_of_unknown(b"key", "mallory", mechanism)
    assert unknown.mechanism == mechanism
    assert len(unknown.salt) == len(known.salt) == SALT_BYTES
    assert unknown.iterations == known.iterations == DEFAULT_ITERATIONS


def test_records_of_unknown_users_differ_by_user_mechanism_and_cluster() -> None:
    asked = [("key", "a", "256"), ("key", "b", "256"), ("key", "a", "512"), ("other", "a", "256")]
    records = [credential_of_unknown(key.encode(), user, f"SCRAM-SHA-{size}") for key, user, size in asked]
    assert len({record.salt for record in records}) == len(asked)
    assert len({record.stored_key for record in records}) == len(asked)
