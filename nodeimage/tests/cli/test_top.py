from collections.abc import Callable
from typing import Any

Headrace = Callable[..., Any]


def test_once_shows_it_with_rates_as_json(hr: Headrace) -> None:
    told = hr("top", "--once", "--interval", "0.2", "-o", "json").json
    (node,) = told["nodes"]
    assert node["state"] == "up"
    assert node["requests_per_second"] > 0  # this command's own requests
    assert node["cpu_percent"] >= 0
    assert node["resident_bytes"] > 1 << 20
    assert {each["state"] for each in told["containers"]} == {"in sync"}
    assert told["totals"]["connections"] >= 1


def test_once_shows_it_as_tables(hr: Headrace) -> None:
    shown = hr("top", "--once", "--interval", "0.2").out
    assert shown.startswith("cluster ")
    for title in ("nodes", "containers", "events"):
        assert any(line.strip() == title for line in shown.splitlines()), title


def test_what_clients_write_is_told_by_stream(hr: Headrace) -> None:
    assert hr("topic", "create", "/default:told-by-top").code == 0
    assert hr("produce", "/default:told-by-top", stdin="1\n2\n3\n").code == 0
    told = hr("status", "--node", "1", "-o", "json").json["traffic"]["streams"]
    assert next(each for each in told if each["stream"] == "/default")["in_since_start_records"] >= 3
    assert "in since start records" in hr("status", "--node", "1").out
    shown = hr("top", "--once", "--interval", "0.2", "-o", "json").json["streams"]
    assert next(each for each in shown if each["stream"] == "/default")["in_per_second_records"] == 0


def test_a_cluster_that_is_not_there_is_told_in_one_line(headrace: Headrace) -> None:
    assert "no cluster runs" in headrace("top", "--once").refused()
