"""Link calls: which versions are understood, and which parameters are refused."""

import msgspec
import pytest

from headrace.base.errors import Code, KafkaError
from headrace.links.serving.params import VERSIONS, Cluster, Group, Index, OfStream, TopicId, check_call, check_version


@pytest.mark.parametrize("version", [VERSIONS[0] - 1, VERSIONS[1] + 1, -1])
def test_a_version_that_is_not_understood_is_refused_with_those_that_are(version: int) -> None:
    with pytest.raises(KafkaError, match=r"link\.hello") as refused:
        check_version(OfStream(version=version, stream="/s"))
    assert refused.value.code is Code.UNSUPPORTED_VERSION


def test_a_call_names_a_stream_by_its_path() -> None:
    check_call(OfStream(version=VERSIONS[1], stream="/plant/a"))
    with pytest.raises(KafkaError):
        check_call(OfStream(version=VERSIONS[1], stream="plant"))


@pytest.mark.parametrize(
    ("kind", "value", "taken"),
    [
        (TopicId, b"t" * 16, True),
        (TopicId, b"t" * 15, False),
        (Index, 2**31 - 1, True),
        (Index, 2**31, False),
        (Index, -1, False),
        (Group, "g" * (2**15 - 1), True),
        (Group, "g" * 2**15, False),
        (Cluster, "north-1.example_x", True),
        (Cluster, "north 1", False),
        (Cluster, "", False),
        (Cluster, "c" * 65, False),
    ],
)
def test_values_are_bounded(kind: object, value: object, taken: bool) -> None:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        assert not taken
    else:
        assert taken


def test_a_parameter_that_is_not_known_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="more"):
        msgspec.convert({"version": 1, "stream": "/s", "more": 1}, OfStream)
