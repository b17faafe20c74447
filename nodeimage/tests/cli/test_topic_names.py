import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import HeadraceError
from headrace.catalog.names import fault_in
from headrace.cli.target import split_address
from headrace.cli.topic_names import in_stream, parse_headers, parse_settings, split_partition


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("/a/b:t/3", ("/a/b:t", 3)),
        ("/a/b:t", ("/a/b:t", None)),
        ("bare/0", ("bare", 0)),
        ("a.b..t", ("a.b..t", None)),
    ],
)
def test_a_partition_follows_the_topic_after_a_slash(name: str, split: tuple[str, int | None]) -> None:
    assert split_partition(name) == split


@pytest.mark.parametrize("name", ["/a/b", "/a/b:", "/a:t/x", "", "t/-1"])
def test_a_name_without_a_topic_or_with_a_wrong_partition_is_refused(name: str) -> None:
    with pytest.raises(HeadraceError):
        split_partition(name)


@given(st.text())
def test_any_device_gets_a_legal_topic(device: str) -> None:
    stream, _, topic = in_stream("/s", device).partition(":")
    assert stream == "/s"
    assert re.fullmatch(r"[A-Za-z0-9._-]+", topic)
    assert ".." not in topic
    assert topic != "."


NAMES = st.text(max_size=4) | st.text("ab. /-_\u6e29", max_size=4) | st.integers(240, 260).map(lambda size: "x" * size)


@given(st.lists(NAMES, unique=True, min_size=2))
def test_devices_of_different_names_have_different_topics(devices: list[str]) -> None:
    topics = {device: in_stream("/s", device) for device in devices}
    assert len(set(topics.values())) == len(devices)
    for topic in topics.values():
        assert fault_in("/s", topic.partition(":")[2]) is None


def test_headers_keep_their_order_their_spaces_and_their_bytes() -> None:
    assert parse_headers(["a= x ", "a=", " b =\udcff=", "c=="]) == [
        ("a", b" x "),
        ("a", b""),
        (" b ", b"\xff="),
        ("c", b"="),
    ]


def test_a_legal_device_keeps_its_name() -> None:
    assert in_stream("/factory", "press-7.oil_temp") == "/factory:press-7.oil_temp"


def test_settings_are_name_and_value() -> None:
    assert parse_settings(["a=1", "b = x=y"]) == {"a": "1", "b": "x=y"}
    with pytest.raises(HeadraceError, match="NAME=VALUE"):
        parse_settings(["a"])


@pytest.mark.parametrize(
    ("address", "split"),
    [
        ("broker:19092", ("broker", 19092)),
        ("broker", ("broker", 9092)),
        ("[::1]:9093", ("::1", 9093)),
        (" 127.0.0.1:1 ", ("127.0.0.1", 1)),
    ],
)
def test_an_address_is_host_and_port(address: str, split: tuple[str, int]) -> None:
    assert split_address(address) == split


@pytest.mark.parametrize("address", ["", ":9092", "host:port", "host:0", "host:65536"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(HeadraceError, match="HOST:PORT"):
        split_address(address)
