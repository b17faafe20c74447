"""The subject of a certificate as text: its distinguished name in the form that Java gives to Kafka (RFC 2253). No I/O.

    CN=Tkac\\, Adam,OU=ITZ+UID=7,DC=geodis,DC=cz

    Certificate    ::= SEQUENCE { tbsCertificate, ... }                          X.509, in DER
    TBSCertificate ::= SEQUENCE { [0] version OPTIONAL, serialNumber, signature, issuer, validity, subject, ... }
    Name           ::= SEQUENCE OF SET OF SEQUENCE { type OBJECT IDENTIFIER, value ANY }

Mapping rules and access expressions are written against this text, so it agrees with Java's `X500Principal.getName`
byte for byte: the last part of the name comes first; the values of one part have the order of the certificate, with
`+` between them; types for which RFC 2253 has no keyword are dotted numbers; and their values, like all values that
are not text, are `#` and the hexadecimal digits of their DER. (Java 17 reads BMPString byte by byte, and the letters of
T61String beyond ASCII as UTF-8; Java 25 reads them as here.) Text that is invalid in its encoding, in which Java would
replace characters, is refused.

TLS has checked the certificate before; malformed bytes are refused all the same.
"""

from dataclasses import dataclass
from typing import Final

from headrace.base.errors import HeadraceError

_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_OBJECT_IDENTIFIER: Final = 0x06
_VERSION: Final = 0xA0
_BEFORE_SUBJECT: Final = 4
"""Number of elements between version and subject: serial number, signature algorithm, issuer and validity."""
_ENCODINGS: Final = {
    0x0C: "utf-8",  # UTF8String
    0x13: "latin-1",  # PrintableString; Java reads it and the next two byte by byte
    0x14: "latin-1",  # T61String
    0x16: "latin-1",  # IA5String
    0x1B: "latin-1",  # GeneralString
    0x1E: "utf-16-be",  # BMPString
}
"""Encodings by the DER tags that Java reads as text."""
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""RFC 2253's keywords, by object identifier."""
_ESCAPES: Final = str.maketrans({character: "\\" + character for character in ',=+<>#;"\\'} | {"\0": "\\00"})
_ESCAPED_AT_ENDS: Final = " \r"


_OBJECT_IDENTIFIER_LIMIT: Final = 64
"""The maximum number of bytes of an object identifier; those in use have fewer than 20."""


class CertificateUnreadable(HeadraceError):
    """The bytes are not a certificate in DER whose subject can be written as text."""


@dataclass(frozen=True, slots=True)
class _Element:
    """One DER value with everything inside it."""

    tag: int
    content: bytes
    encoded: bytes
    """The value's bytes, including tag and length."""


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate in DER, "" if it has none. Raises CertificateUnreadable."""
    whole = _elements(certificate)
    signed = _inside(whole[0], _SEQUENCE) if len(whole) == 1 else []
    fields = [field for field in _inside(signed[0], _SEQUENCE) if field.tag != _VERSION] if signed else []
    if len(fields) <= _BEFORE_SUBJECT:
        raise CertificateUnreadable("the certificate has no field for a subject")
    parts = _inside(fields[_BEFORE_SUBJECT], _SEQUENCE)
    return ",".join(["+".join(map(_pair_text, _inside(part, _SET))) for part in reversed(parts)])


def _pair_text(pair: _Element) -> str:
    match _inside(pair, _SEQUENCE):
        case [_Element(tag=tag, content=content), value] if tag == _OBJECT_IDENTIFIER:
            kind = _object_identifier(content)
        case _:
            raise CertificateUnreadable("a part of the certificate's subject is not a pair of a type and a value")
    keyword, encoding = _KEYWORDS.get(kind), _ENCODINGS.get(value.tag)
    if keyword is None or encoding is None:
        return f"{keyword or kind}=#{value.encoded.hex()}"
    try:
        return f"{keyword}={_escaped(value.content.decode(encoding))}"
    except UnicodeDecodeError:
        raise CertificateUnreadable(f"{keyword} in the certificate's subject is not text in {encoding}") from None


def _escaped(value: str) -> str:
    text = value.translate(_ESCAPES)
    middle = text.lstrip(_ESCAPED_AT_ENDS)
    leading = text[: len(text) - len(middle)]
    middle = middle.rstrip(_ESCAPED_AT_ENDS)
    trailing = text[len(leading) + len(middle) :]
    return _each_escaped(leading) + middle + _each_escaped(trailing)


def _each_escaped(blanks: str) -> str:
    return "".join(["\\" + blank for blank in blanks])


def _inside(element: _Element, tag: int) -> list[_Element]:
    if element.tag != tag:
        raise CertificateUnreadable(f"the certificate has the tag {element.tag:#04x} where {tag:#04x} must be")
    return _elements(element.content)


def _elements(encoded: bytes) -> list[_Element]:
    """The consecutive elements in these bytes."""
    found = []
    at = 0
    while at < len(encoded):
        start, end = _content_bounds(encoded, at)
        found.append(_Element(encoded[at], encoded[start:end], encoded[at:end]))
        at = end
    return found


def _content_bounds(encoded: bytes, at: int) -> tuple[int, int]:
    """Where the content of the element at `at` begins and ends."""
    start = at + 2
    length = encoded[at + 1] if start <= len(encoded) else 0x80
    if length > 0x80:
        start += length - 0x80
        digits = encoded[at + 2 : start]
        length = int.from_bytes(digits, "big")
        if digits[:1] == b"\0" or length < 0x80:
            raise CertificateUnreadable("a length in the certificate is longer than it must be, so it is not DER")
    elif length == 0x80:
        raise CertificateUnreadable("a length in the certificate is missing, so it is not DER")
    if start + length > len(encoded):
        raise CertificateUnreadable("the certificate ends too early")
    return start, start + length


def _object_identifier(content: bytes) -> str:
    if not 0 < len(content) <= _OBJECT_IDENTIFIER_LIMIT or content[-1] & 0x80:
        raise CertificateUnreadable("a type in the certificate's subject is not an object identifier")
    arcs: list[int] = []
    arc = 0
    for byte in content:
        arc = arc << 7 | byte & 0x7F
        if not byte & 0x80:
            arcs.append(arc)
            arc = 0
    first = min(arcs[0] // 40, 2)
    return ".".join(map(str, (first, arcs[0] - 40 * first, *arcs[1:])))
