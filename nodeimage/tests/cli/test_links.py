from pathlib import Path

import pytest

from headrace.base.errors import HeadraceError
from headrace.base.properties import parse_properties
from headrace.cli.links import link_fields, link_row, move_problem, move_row, split_source


def test_a_source_is_addresses_and_a_path() -> None:
    assert split_source("north:9092/factory/sensors") == (["north:9092"], "/factory/sensors")
    assert split_source("a:1, b:2/x") == (["a:1", "b:2"], "/x")
    assert split_source("kafka:9092") == (["kafka:9092"], "")
    for wrong in ("/factory", "north:9092/", ""):
        with pytest.raises(HeadraceError, match="HOST:PORT/PATH"):
            split_source(wrong)


def test_what_is_not_said_is_not_sent(tmp_path: Path) -> None:
    assert link_fields(None, None, None, None, None, None) == {}
    properties = tmp_path / "client.properties"
    properties.write_text('# of north\nsecurity.protocol=SASL_SSL\nsasl.jaas.config=x \\\n  y="=";\n')
    assert link_fields(["pump-*,fan", "x"], "both", "h:1,h:2", False, "5MB/s", properties) == {
        "topics": ["pump-*", "fan", "x"],
        "direction": "both",
        "bootstrap": ["h:1", "h:2"],
        "forward_writes": False,
        "throttle": 5_000_000,
        "credentials": {"security.protocol": "SASL_SSL", "sasl.jaas.config": 'x y="=";'},
    }
    assert link_fields(None, None, None, None, "unlimited", None) == {"throttle": 0}
    reverse = link_fields(None, None, None, None, None, None, properties)
    assert list(reverse) == ["reverse_credentials"]
    (tmp_path / "ca.crt").write_text("PEM\n")
    properties.write_text(f"security.protocol=SSL\nssl.ca.location={tmp_path / 'ca.crt'}\n")
    reverse = link_fields(None, None, None, None, None, properties, properties)
    assert reverse["reverse_credentials"] == {"security.protocol": "SSL", "ssl.ca.pem": "PEM\n"}
    assert reverse["credentials"]["ssl.ca.location"], "those are files of this cluster's nodes"
    empty = tmp_path / "empty"
    empty.touch()
    assert link_fields(None, None, None, None, None, None, empty) == {"reverse_credentials": {}}


def test_a_line_that_is_no_property_is_not_told() -> None:
    with pytest.raises(HeadraceError) as caught:
        parse_properties("pa55word")
    assert "pa55word" not in str(caught.value)


def test_what_was_not_replicated_may_be_unknown() -> None:
    assert move_row({"topic": "t", "moved": True, "not_replicated": None})["not_replicated"] == "unknown"
    assert move_row({"topic": "t", "moved": True, "not_replicated": 0})["not_replicated"] == 0
    assert move_row({"topic": "t", "moved": False, "not_replicated": None})["not_replicated"] is None


def test_a_topic_that_was_moved_has_not_failed() -> None:
    done = {"topic": "a", "moved": True, "error": None}
    late = {"topic": "b", "moved": True, "error": "its partitions are not rolled yet"}
    refused = {"topic": "c", "moved": False, "error": "there is no topic c"}
    assert move_problem([done]) == ""
    assert move_problem([late]) == "1 of 1 moved, but not completely: b: its partitions are not rolled yet"
    assert move_problem([done, refused]) == "1 of 2 failed: c: there is no topic c"
    assert move_problem([done, late, refused]) == (
        "1 of 3 failed: c: there is no topic c; 1 of 3 moved, but not completely: b: its partitions are not rolled yet"
    )


def test_a_lag_is_shown_with_its_unit() -> None:
    shown = link_row({"name": "l", "lag_seconds": 1.25, "throttle": 0, "last_error_ms": None})
    assert shown == {"name": "l", "lag_time": "1.2 s", "throttle_bytes": None, "last_error_at_ms": None}
