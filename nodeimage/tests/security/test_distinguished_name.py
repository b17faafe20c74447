"""Subjects of certificates as text, compared with the result of Java 25's X500Principal.getName for the same bytes."""

import contextlib
import datetime
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from headrace.security.distinguished_name import CertificateUnreadable, subject_of

SEQUENCE, SET = 0x30, 0x31
COUNTRY, L, ST, STREET, ORG, OU, CN, TITLE = (b"\x55\x04" + bytes([arc]) for arc in (6, 7, 8, 9, 10, 11, 3, 12))
SERIAL_NUMBER = b"\x55\x04\x05"
UID, DC = (b"\x09\x92\x26\x89\x93\xf2\x2c\x64\x01" + bytes([arc]) for arc in (1, 25))
EMAIL = b"\x2a\x86\x48\x86\xf7\x0d\x01\x09\x01"
UNKNOWN = b"\x88\x37\x90\x80\x80\x80\x00"


def der(tag: int, *contents: bytes) -> bytes:
    content = b"".join(contents)
    size = len(content)
    digits = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag]) + (bytes([size]) if size < 0x80 else bytes([0x80 | len(digits)]) + digits) + content


def utf8(text: str) -> bytes:
    return der(0x0C, text.encode())


def name(*parts: list[tuple[bytes, bytes]]) -> bytes:
    return der(SEQUENCE, *[der(SET, *[der(SEQUENCE, der(6, kind), value) for kind, value in part]) for part in parts])


def certificate(subject: bytes, *, version: bytes = b"\xa0\x03\x02\x01\x02") -> bytes:
    """The smallest part of a certificate that has a subject."""
    empty = der(SEQUENCE)
    signed = der(SEQUENCE, version, der(2, b"\1"), empty, name([(CN, utf8("ca"))]), empty, subject, empty)
    return der(SEQUENCE, signed, empty, der(3, b"\0"))


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        (name(), ""),
        (name([(CN, utf8(""))]), "CN="),
        (
            name(
                [(COUNTRY, der(0x13, b"US"))], [(ORG, utf8("Org"))], [(OU, utf8("ServiceUsers"))], [(CN, utf8("Duke"))]
            ),
            "CN=Duke,OU=ServiceUsers,O=Org,C=US",
        ),
        (
            name([(DC, der(0x16, b"cz"))], [(DC, der(0x16, b"x"))], [(OU, utf8("ITZ"))], [(CN, utf8("Tkac, Adam"))]),
            r"CN=Tkac\, Adam,OU=ITZ,DC=x,DC=cz",
        ),
        (name([(L, utf8("L"))], [(ST, utf8("S"))], [(STREET, utf8("1 Way"))]), "STREET=1 Way,ST=S,L=L"),
        (name([(ORG, utf8("x")), (CN, utf8("b")), (UID, utf8("7"))]), "O=x+CN=b+UID=7"),
        (name([(CN, utf8(' #a+b=c;<d>"e"\\ \r '))]), 'CN=\\ \\#a\\+b\\=c\\;\\<d\\>\\"e\\"\\\\\\ \\\r\\ '),
        (name([(CN, utf8("   "))]), r"CN=\ \ \ "),
        (name([(CN, utf8("a\0b"))]), r"CN=a\00b"),
        (name([(CN, utf8("Jörg 😀"))]), "CN=Jörg 😀"),
        (name([(CN, der(0x1E, "Jörg".encode("utf-16-be")))]), "CN=Jörg"),
        (name([(CN, der(0x14, "Jörg".encode("latin-1")))]), "CN=Jörg"),
        (name([(CN, der(0x1C, "J".encode("utf-32-be")))]), "CN=#1c040000004a"),
        (name([(CN, der(2, b"\7"))]), "CN=#020107"),
        (
            name(
                [(EMAIL, der(0x16, b"a@b.c"))],
                [(SERIAL_NUMBER, der(0x13, b"12"))],
                [(UNKNOWN, utf8("x"))],
                [(TITLE, utf8("Dr"))],
            ),
            "2.5.4.12=#0c024472,2.999.4294967296=#0c0178,2.5.4.5=#13023132,1.2.840.113549.1.9.1=#16056140622e63",
        ),
    ],
)
def test_subjects_are_written_as_java_writes_them(subject: bytes, text: str) -> None:
    assert subject_of(certificate(subject)) == text
    assert subject_of(certificate(subject, version=b"")) == text  # version 1 of the format


def test_long_values_are_read() -> None:
    assert subject_of(certificate(name([(CN, utf8("x" * 70_000))]))) == "CN=" + "x" * 70_000


def test_the_subject_of_a_real_certificate_is_not_its_issuer() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.COUNTRY_NAME, "DE"),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Acme, Inc."),
            x509.NameAttribute(NameOID.COMMON_NAME, "pump-7"),
        ]
    )
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    builder = x509.CertificateBuilder(
        issuer_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")]),
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=1,
        not_valid_before=now,
        not_valid_after=now + datetime.timedelta(days=1),
    )
    made = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)
    assert subject_of(made) == r"CN=pump-7,O=Acme\, Inc.,C=DE" == subject.rfc4514_string()


def test_the_subject_of_a_certificate_of_openssl(tmp_path: Path) -> None:
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", "/DC=org/O=Acme/OU=x+CN=alice/emailAddress=a@b.c", "-multivalue-rdn", "-utf8"),
            *("-outform", "DER", "-out", "c.der", "-keyout", "c.key"),
        ],
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
        check=True,
    )
    written = subject_of((tmp_path / "c.der").read_bytes())
    assert written in (
        "1.2.840.113549.1.9.1=#16056140622e63,OU=x+CN=alice,O=Acme,DC=org",
        "1.2.840.113549.1.9.1=#16056140622e63,CN=alice+OU=x,O=Acme,DC=org",  # OpenSSL's order of a SET
    )


WHOLE = certificate(name([(COUNTRY, der(0x13, b"US"))], [(CN, utf8("Duke")), (UNKNOWN, utf8("x"))]))


@pytest.mark.parametrize(
    ("encoded", "fault"),
    [
        (b"", "has no field for a subject"),
        (WHOLE + WHOLE, "has no field for a subject"),
        (der(SEQUENCE), "has no field for a subject"),
        (der(SEQUENCE, der(SEQUENCE)), "has no field for a subject"),
        (der(SET, WHOLE), "the tag 0x31 where 0x30 must be"),
        (certificate(der(SET)), "the tag 0x31 where 0x30 must be"),
        (certificate(der(SEQUENCE, der(SET, der(SEQUENCE, der(6, CN))))), "not a pair of a type and a value"),
        (certificate(der(SEQUENCE, der(SET, der(SEQUENCE, utf8("x"), utf8("x"))))), "not a pair of a type and a value"),
        (certificate(name([(b"", utf8("x"))])), "not an object identifier"),
        (certificate(name([(b"\x55\x84", utf8("x"))])), "not an object identifier"),
        (certificate(name([(b"\x81" * 100_000 + b"\1", utf8("x"))])), "not an object identifier"),
        (certificate(name([(CN, der(0x0C, b"\xff"))])), "CN in the certificate's subject is not text in utf-8"),
        (certificate(name([(CN, der(0x1E, b"\0"))])), "is not text in utf-16-be"),
        (certificate(name([(CN, der(0x1E, b"\xd8\0"))])), "is not text in utf-16-be"),
        (b"\x30", "a length in the certificate is missing"),
        (b"\x30\x80\0\0", "a length in the certificate is missing"),
        (b"\x30\x81\x05" + bytes(5), "longer than it must be"),
        (b"\x30\x82\x00\x85" + bytes(0x85), "longer than it must be"),
        (b"\x30\xff", "longer than it must be"),
        (b"\x30\x84\xff\xff\xff\xff", "ends too early"),
        (WHOLE[:-1], "ends too early"),
    ],
)
def test_bytes_that_are_no_certificate_are_refused(encoded: bytes, fault: str) -> None:
    with pytest.raises(CertificateUnreadable, match=fault):
        subject_of(encoded)


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_a_certificate_with_another_byte_is_read_or_refused(place: int, byte: int) -> None:
    changed = WHOLE[:place] + bytes([byte]) + WHOLE[place + 1 :]
    with contextlib.suppress(CertificateUnreadable):
        assert isinstance(subject_of(changed), str)


@given(st.text())
def test_any_text_is_written_on_one_side_of_one_comma(value: str) -> None:
    written = subject_of(certificate(name([(ORG, utf8("o"))], [(CN, utf8(value))])))
    assert written.startswith("CN=")
    assert written.endswith(",O=o")
    bare = written.removesuffix(",O=o").replace("\\\\", "").replace("\\,", "")
    assert "," not in bare
