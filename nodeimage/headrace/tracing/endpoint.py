"""The destination of spans: a node's own option, or OpenTelemetry's environment variables. Pure."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

from headrace.base.errors import HeadraceError

TRACES_PATH: Final = "v1/traces"
OWN: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
"""The environment variable with the complete address; the path is added to the address in `COMMON`."""
COMMON: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
DISABLED: Final = "OTEL_SDK_DISABLED"
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
SPOKEN: Final = "http/protobuf"
MISSING: Final = "traces need OpenTelemetry, which is not installed: pip install 'headrace[tracing]'"
NEEDED: Final = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")


class TracingRefused(HeadraceError):
    """The endpoint for spans is invalid, or OpenTelemetry is not installed."""


def need_extra() -> None:
    """Raises TracingRefused if OpenTelemetry is not installed."""
    for name in NEEDED:
        try:
            found = find_spec(name) is not None
        except ImportError:  # a parent package is missing
            found = False
        if not found:
            raise TracingRefused(f"{MISSING} (no {name})")


def checked_endpoint(text: str) -> str:
    """Returns `text` if it can be the address of a collector. Raises TracingRefused, without credentials in the
    message."""
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise TracingRefused("the address of a collector is http://HOST:PORT, such as http://localhost:4318") from None
    if parts.username is not None or parts.password is not None:
        raise TracingRefused(
            "the address of a collector must not contain a user or a password: give credentials by "
            "OTEL_EXPORTER_OTLP_HEADERS"
        )
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or not text.isprintable():
        raise TracingRefused("the address of a collector is http://HOST:PORT, such as http://localhost:4318")
    return text


def endpoint_of(option: str, environment: Mapping[str, str]) -> str:
    """The address to which spans are posted; "" if tracing is off. Raises TracingRefused."""
    if environment.get(DISABLED, "").strip().lower() == "true":
        return ""
    if option:
        return _with_path(checked_endpoint(option))
    own, common = environment.get(OWN, ""), environment.get(COMMON, "")
    if not own and not common:
        return ""
    protocol = next((value for name in PROTOCOLS if (value := environment.get(name, ""))), SPOKEN)
    if protocol != SPOKEN:
        raise TracingRefused(
            f"spans are exported by {SPOKEN} only, but {' or '.join(PROTOCOLS)} names another protocol"
        )
    return checked_endpoint(own) if own else _with_path(checked_endpoint(common))


def _with_path(base: str) -> str:
    bare = base.rstrip("/")
    return bare if bare.endswith(f"/{TRACES_PATH}") else f"{bare}/{TRACES_PATH}"
