"""Headers of records, byte for byte."""

import base64
from typing import Any

from headrace.wire.batch import build_batch
from kit.commands_on_node import Headrace, stored


def test_names_of_headers_come_back_exactly(hr: Headrace, cluster: Any) -> None:
    topic = cluster.topic()
    names = [b"\xff\xfe", b"a\x00b", b"", "ü".encode()]
    records = [(1_000, b"k", b"v", [(name.decode("utf-8", "surrogateescape"), None)]) for name in names]
    hr("topic", "create", topic)
    stored(cluster.bootstrap, topic, bytes(build_batch(records)))
    read = hr("consume", topic, "--from-beginning", "-o", "json").json_lines
    found = [each["headers"][0] for each in read]
    assert [
        base64.b64decode(each["name_base64"]) if "name_base64" in each else each["name"].encode() for each in found
    ] == names
    assert len(hr("consume", topic, "--from-beginning").out.splitlines()) == len(names)
