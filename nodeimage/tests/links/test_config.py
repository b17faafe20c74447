import msgspec
import pytest

from headrace.base.errors import Code, KafkaError
from headrace.catalog.link_config import LinkConfig, matches
from headrace.links.config import check_link_name, checked_config, credential_names, seal, short_name, unseal

GOOD = LinkConfig(source=["a.example:9092"], source_stream="/factory/sensors")


def refused(**changes: object) -> str:
    with pytest.raises(KafkaError) as caught:
        checked_config(msgspec.structs.replace(GOOD, **changes), stream="/copies")
    assert caught.value.code is Code.INVALID_CONFIG
    return str(caught.value)


def test_what_is_right_is_kept_and_brought_into_one_form() -> None:
    config = msgspec.structs.replace(
        GOOD, source=["a.example:9092,b.example:9093", "a.example:9092"], topics=["x", "x"]
    )
    kept = checked_config(config, stream="/copies")
    assert kept.source == ["a.example:9092", "b.example:9093"]
    assert kept.topics == ["x"]
    assert checked_config(kept, stream="/copies") == kept


def test_what_is_wrong_is_refused_with_what_to_write() -> None:
    assert "host:port" in refused(source=["a.example"])
    assert "host:port" in refused(source=[])
    assert "the source's stream" in refused(source_stream="sensors")
    assert "pull or both" in refused(direction="push")
    assert "pull only" in refused(source_stream="", direction="both", bootstrap=["h:1"])
    assert "--reach" in refused(direction="both")
    assert "host:port" in refused(direction="both", bootstrap=["here"])
    assert "'*' for all" in refused(topics=[])
    assert "pattern" in refused(topics=["/other:pump-*"])
    assert "at least 1024" in refused(throttle=3)
    assert "at least 1024" in refused(throttle=-1)
    for name in ("", "-x", "a b", "x" * 101, "a/b"):
        with pytest.raises(KafkaError, match="names no link"):
            check_link_name(name)


def test_patterns_match_whole_names_and_mind_case() -> None:
    assert matches(["*"], "anything")
    assert matches(["pump-*", "fan"], "pump-1")
    assert matches(["pump-*", "fan"], "fan")
    assert not matches(["pump-*"], "Pump-1")
    assert not matches(["pump"], "pump-1")


def test_credentials_are_sealed_and_only_their_names_are_told() -> None:
    given = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "pw7",
    }
    sealed = seal(given, "secret")
    assert b"pw7" not in sealed
    assert sealed != seal(given, "secret")
    assert unseal(sealed, "secret") == given
    assert credential_names(sealed, "secret") == sorted(given)
    assert seal({}, "secret") == b""
    assert unseal(b"", "secret") == {}
    for damaged in (sealed[:-1], sealed[:20] + b"x" + sealed[21:], b"\x02" + sealed[1:], b"\x01"):
        with pytest.raises(KafkaError, match="another secret"):
            unseal(damaged, "secret")
    with pytest.raises(KafkaError, match="another secret"):
        unseal(sealed, "other")
    assert credential_names(sealed, "other") == ["(sealed with another secret)"]
    with pytest.raises(KafkaError):
        seal({"sasl.mechanism": "KERBEROS"}, "secret")


def test_a_link_without_a_name_gets_one_that_tells_its_source() -> None:
    name = short_name(["a.example:9092"], "/factory/sensors")
    check_link_name(name)
    assert name.startswith("a-example-factory-sensors-")
    assert name == short_name(["a.example:9092"], "/factory/sensors")
    assert name != short_name(["a.example:9093"], "/factory/sensors")
    check_link_name(short_name(["[::1]:9092"], "/" + "x" * 200))
