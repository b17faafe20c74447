from headrace.cli.formatting import described, rows_of, show_value


def test_the_end_of_a_name_says_the_unit() -> None:
    assert show_value("on_disk_bytes", 1536) == "1.5 KiB"
    assert show_value("bytes", -1) == "unlimited"
    assert show_value("ttl_ms", 604_800_000) == "7d"
    assert show_value("retention_ms", -1) == "forever"
    assert show_value("created_ms", 1_441_115_100_000) == "2015-09-01 13:45:00Z"
    for name in ("certificate_expires_ms", "problem_since_ms"):
        assert show_value(name, 1_441_115_100_000) == "2015-09-01 13:45:00Z"
    assert show_value("cpu_since_start_ms", 90_000) == "1min30s"
    assert show_value("lag", 12) == 12
    assert show_value("auto_create", False) == "no"
    assert show_value("protocol", "") == "-"
    assert show_value("cursor", None) == "-"
    assert show_value("errors", []) == "none"
    assert show_value("configs", {"a": "1", "b": "2"}) == "a=1, b=2"


def test_what_is_nested_is_named_by_both() -> None:
    assert described({"disk": {"free_bytes": 1024}, "name": "x"}) == [("disk.free", "1.0 KiB"), ("name", "x")]


def test_retention_by_time_and_by_size_have_labels_of_their_own() -> None:
    shown = described({"retention_ms": 86_400_000, "retention_bytes": 1024})
    assert shown == [("retention", "1d"), ("retention size", "1.0 KiB")]


def test_a_table_has_a_column_for_each_name_and_knows_numbers() -> None:
    columns, rows, numbers = rows_of(
        [{"id": 1, "state": "open", "size_bytes": 1}, {"id": 2, "state": None, "size_bytes": 2}]
    )
    assert columns == ["id", "state", "size"]
    assert list(rows) == [[1, "open", "1 B"], [2, "-", "2 B"]]
    assert numbers == ["id", "size"]
    assert rows_of([])[0] == []
