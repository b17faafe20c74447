"""Subscriptions are bytes from clients."""

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.consumer_protocol_subscription.v0.data import ConsumerProtocolSubscription as V0
from kio.schema.consumer_protocol_subscription.v3.data import ConsumerProtocolSubscription as V3
from kio.serial import entity_writer

from headrace.coordination.subscription import full_names, may_name_bare, subscribed_topics


@given(st.sets(st.text(st.characters(codec="utf-8"), max_size=20), max_size=8), st.sampled_from([0, 3]))
def test_topics_are_read_from_subscriptions_of_all_versions(topics: set[str], version: int) -> None:
    raw = io.BytesIO()
    raw.write(struct.pack(">h", version))
    common = {"topics": tuple(topics), "user_data": b"user data"}
    if version == 0:
        entity_writer(V0)(raw, V0(**common))
    else:
        entity_writer(V3)(raw, V3(**common, owned_partitions=(), generation_id=3, rack_id="r"))
    assert subscribed_topics(raw.getvalue()) == topics


@given(st.binary(max_size=60))
def test_other_bytes_are_no_subscription_or_an_odd_one(raw: bytes) -> None:
    topics = subscribed_topics(raw)
    assert topics is None or sum(len(topic.encode()) for topic in topics) <= len(raw)


@pytest.mark.parametrize("raw", [b"", b"\0\1", b"\0\0\0\0\0\1", b"\0\0\x7f\xff\xff\xff", b"\0\0\0\0\0\1\0\5ab"])
def test_truncated_subscription_is_none(raw: bytes) -> None:
    assert subscribed_topics(raw) is None


def subscription(*topics: str) -> bytes:
    raw = io.BytesIO()
    raw.write(struct.pack(">h", 0))
    entity_writer(V0)(raw, V0(topics=topics, user_data=None))
    return raw.getvalue()


@pytest.mark.parametrize(
    ("metadata", "may"),
    [
        (subscription("/a:t", "a..t"), False),
        (subscription(), False),
        (subscription("/a:t", "t"), True),
        (b"none", True),
    ],
    ids=["full", "nothing", "bare", "unknown"],
)
def test_a_bare_name_is_one_without_a_stream_and_so_may_be_what_is_not_understood(metadata: bytes, may: bool) -> None:
    assert may_name_bare(metadata) is may


def test_full_names_are_by_the_default_stream_and_leave_out_what_no_topic_is_called() -> None:
    assert full_names(["t", "/a:t", "a.b..t", "a b", "/a"], "/sensors") == {"/sensors:t", "/a:t", "/a/b:t"}
