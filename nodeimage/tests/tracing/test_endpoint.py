import sys
from importlib.machinery import ModuleSpec

import pytest

from headrace.tracing import endpoint
from headrace.tracing.endpoint import TracingRefused, checked_endpoint, endpoint_of, need_extra


@pytest.mark.parametrize(
    ("option", "environment", "found"),
    [
        ("", {}, ""),
        ("", {"OTEL_EXPORTER_OTLP_HEADERS": "a=b"}, ""),
        ("http://here:4318", {}, "http://here:4318/v1/traces"),
        ("http://here:4318/", {}, "http://here:4318/v1/traces"),
        ("https://here/base", {}, "https://here/base/v1/traces"),
        ("http://[::1]:4318/v1/traces", {}, "http://[::1]:4318/v1/traces"),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://env:4318"}, "http://env:4318/v1/traces"),
        ("", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://env:4318/own"}, "http://env:4318/own"),
        (
            "",
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://env:4318",
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://traces:4318/own",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            },
            "http://traces:4318/own",
        ),
        ("http://here:4318", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://env:4318"}, "http://here:4318/v1/traces"),
        ("http://here:4318", {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http://here:4318/v1/traces"),
        ("http://here:4318", {"OTEL_SDK_DISABLED": "true"}, ""),
    ],
)
def test_a_nodes_own_option_comes_before_what_the_environment_says(
    option: str, environment: dict[str, str], found: str
) -> None:
    assert endpoint_of(option, environment) == found


@pytest.mark.parametrize(
    "text",
    [
        *("here:4318", "grpc://here:4317", "http://", "http://:4318", "http://here:99999", "http://here:x"),
        *("http://here/?a=b", "http://here/#a", "http://[::1", "http://here/\n", "file:///etc/passwd"),
    ],
)
def test_what_cannot_be_an_address_is_refused(text: str) -> None:
    with pytest.raises(TracingRefused, match="http://HOST:PORT"):
        checked_endpoint(text)


@pytest.mark.parametrize("text", ["http://me:hunter2@here:4318", "http://hunter2@here", "http://:hunter2@here"])
def test_credentials_in_an_address_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(TracingRefused, match="OTEL_EXPORTER_OTLP_HEADERS") as refused:
        endpoint_of("", {"OTEL_EXPORTER_OTLP_ENDPOINT": text})
    assert "hunter2" not in str(refused.value)


def test_another_protocol_is_refused() -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://here:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    with pytest.raises(TracingRefused, match="http/protobuf only"):
        endpoint_of("", environment)


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    need_extra()

    def nowhere(name: str) -> ModuleSpec | None:
        if name.startswith("opentelemetry.exporter"):
            raise ModuleNotFoundError(name)
        return sys.modules["pytest"].__spec__

    monkeypatch.setattr(endpoint, "find_spec", nowhere)
    with pytest.raises(TracingRefused, match=r"pip install 'headrace\[tracing\]'"):
        need_extra()
