import re

from headrace.metrics import declarations
from headrace.metrics.declarations import ALL
from headrace.metrics.metric import NODE, Kind, Metric

KEPT = """
    ready controller store_silent_seconds catalog_damaged streams topics partitions topics_in_memory connections
    connections_limit open_descriptors descriptors_limit resident_bytes disk_free_bytes disk_total_bytes
    stored_bytes waiting_bytes connections_total connections_refused_total connections_made_way_total
    connections_silent_total requests_total produce_requests_total fetch_requests_total in_bytes_total
    out_bytes_total given_back_bytes_total chunks_regrouped_total container_epoch container_end_position
    container_committed_position container_stored_bytes container_leads
"""


def test_each_metric_is_declared_once_and_told_in_a_section() -> None:
    names = [metric.name for metric in ALL]
    assert len(names) == len(set(names))
    declared = [each for each in vars(declarations).values() if isinstance(each, Metric)]
    assert {each.name for each in declared} == set(names)


def test_names_and_labels_follow_prometheus_rules() -> None:
    for metric in ALL:
        assert re.fullmatch(r"headrace_[a-z][a-z_]*[a-z]", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        assert all(re.fullmatch(r"[a-z]+", label) for label in metric.labels)
        assert not {NODE, "le", "job", "instance"} & set(metric.labels)
        assert metric.help[0].isupper() or metric.help[0].isdigit()
        assert "|" not in metric.help
        assert "\n" not in metric.help
        assert not metric.help.endswith(".")


def test_names_that_people_have_in_their_dashboards_are_kept() -> None:
    assert {f"headrace_{name}" for name in KEPT.split()} <= {metric.name for metric in ALL}
