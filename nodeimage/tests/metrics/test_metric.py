import pytest

from headrace.metrics.metric import Kind, counter, gauge, histogram, unit_of


def test_names_say_what_kind_and_unit_a_metric_has() -> None:
    assert gauge("free_bytes", "Room").unit == "bytes"
    assert counter("in_records_total", "Records").unit == "records"
    assert histogram("took_seconds", "Time", "api").labels == ("api",)
    assert histogram("took_seconds", "Time").kind is Kind.HISTOGRAM
    assert unit_of("ready") == ""


def test_names_that_break_prometheus_rules_are_refused() -> None:
    with pytest.raises(AssertionError, match="_total"):
        counter("done", "What was done")
    with pytest.raises(AssertionError, match="seconds"):
        histogram("took_ms", "Time")
