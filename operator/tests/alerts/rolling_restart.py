"""The series that Prometheus scrapes from a cluster on Kubernetes during a rolling restart.

Each node is down for a minute and a half, returns with another address, and is behind for another half minute. The
controller and the groups' coordinator move when their node stops; for a moment a scrape sees none, or two of them.
"""

from collections.abc import Callable
from typing import Final

from .cases import OLD
from .promtool import PER_MINUTE, STEP_S, Scenario, Values

NODES: Final = 9
FIRST_S: Final = 600
EACH_S: Final = 150
AWAY_S: Final = 90
BEHIND_S: Final = 30
MINUTES: Final = 60

Gauge = Callable[[int, int], float]
"""A value of a node that answers, by the node's number and the second."""


def went_s(node: int) -> int:
    """Return when a node is stopped."""
    return FIRST_S + node * EACH_S


def away(at_s: int) -> int | None:
    """Return which node does not answer; None if all do."""
    return next((node for node in range(NODES) if went_s(node) <= at_s < went_s(node) + AWAY_S), None)


def under_way(at_s: int) -> bool:
    """Return whether some replicas are not in sync: a node is down, or catching up."""
    return any(went_s(node) <= at_s < went_s(node) + AWAY_S + BEHIND_S for node in range(NODES))


def leader(at_s: int) -> int | None:
    """Return the node that is the controller and coordinates groups; None if a scrape sees no such node."""
    if went_s(0) <= at_s < went_s(0) + 2 * STEP_S:
        return None
    return 0 if at_s < went_s(0) else 1 if at_s < went_s(1) else 2 if at_s < went_s(2) else 0


def since_start_s(node: int, at_s: int) -> float:
    """Return for how long the node's process has been running."""
    back_s = went_s(node) + AWAY_S - 10
    return at_s - back_s if at_s >= back_s else at_s - OLD


def ready(node: int, at_s: int) -> float:
    return 0.0 if went_s(node) <= at_s < went_s(node) + AWAY_S + BEHIND_S else 1.0


def controller(node: int, at_s: int) -> float:
    """Just after the controller has moved, a scrape may see two."""
    return float(leader(at_s) == node or leader(at_s - STEP_S) == node)


GAUGES: Final[dict[str, Gauge]] = {
    "headrace_ready": ready,
    "headrace_controller": controller,
    'headrace_nodes{state="dead"}': lambda node, at_s: float(leader(at_s) == node and away(at_s) is not None),
    "headrace_start_time_seconds": lambda node, at_s: at_s - since_start_s(node, at_s),
    'headrace_containers{state="in_sync"}': lambda _, at_s: 1.0 if under_way(at_s) else 8.0,
    'headrace_containers{state="behind"}': lambda _, at_s: 7.0 if under_way(at_s) else 0.0,
    # For a moment, as a node stops, a container has too few in-sync replicas, or no leader.
    'headrace_containers{state="stalled"}': lambda node, at_s: float(
        at_s - went_s((node + 1) % NODES) in range(STEP_S)
    ),
    'headrace_containers{state="waiting"}': lambda node, at_s: float(
        at_s - went_s((node + 1) % NODES) in range(STEP_S)
    ),
    "headrace_store_silent_seconds": lambda *_: 0.4,
    "headrace_connections": lambda node, at_s: 40.0 if away(at_s) is None else 50.0,
    "headrace_connections_limit": lambda *_: 1000.0,
    "headrace_open_descriptors": lambda *_: 300.0,
    "headrace_descriptors_limit": lambda *_: 2000.0,
    "headrace_disk_free_bytes": lambda _, at_s: 4e11 - at_s * 1e6,
    "headrace_disk_total_bytes": lambda *_: 1e12,
    "headrace_catalog_damaged": lambda *_: 0.0,
    # Counters restart with the process. For a moment, requests to a former leader are refused.
    "headrace_scrub_findings_total": lambda *_: 0.0,
    "headrace_failovers_total": lambda node, at_s: 0.0 if at_s < FIRST_S else 2.0 if leader(at_s) == node else 0.0,
    "headrace_set_aside_records_total": lambda *_: 0.0,
    'headrace_logins_refused_total{mechanism="SCRAM-SHA-512"}': lambda *_: 1.0,
    'headrace_request_errors_total{api="Produce",code="NOT_LEADER_OR_FOLLOWER"}': lambda node, at_s: (
        2.0 * since_start_s(node, at_s)
    ),
    'headrace_request_errors_total{api="Produce",code="NOT_ENOUGH_REPLICAS"}': lambda *_: 3.0,
    # A start keeps the loop busy for a minute.
    'headrace_loop_lag_seconds_bucket{le="0.05"}': lambda node, at_s: (
        99.9 * since_start_s(node, at_s) - 10 * min(since_start_s(node, at_s), 60)
    ),
    'headrace_loop_lag_seconds_bucket{le="+Inf"}': lambda node, at_s: 100.0 * since_start_s(node, at_s),
    'headrace_log_sync_seconds_bucket{le="0.1"}': lambda node, at_s: 99.9 * since_start_s(node, at_s),
    'headrace_log_sync_seconds_bucket{le="+Inf"}': lambda node, at_s: 100.0 * since_start_s(node, at_s),
    'headrace_certificate_expiry_seconds{listener="clients"}': lambda *_: 80.0 * 86_400,
    'headrace_group_lag_seconds{group="billing"}': lambda node, at_s: 40.0 if under_way(at_s) else 1.0,
    'headrace_group_members{group="billing"}': lambda *_: 3.0,
    'headrace_link_state{link="north",state="Failed"}': lambda *_: 0.0,
    'headrace_link_lag_seconds{link="north"}': lambda _, at_s: 60.0 if under_way(at_s) else 1.0,
    'headrace_link_blocked_partitions{link="north"}': lambda _, at_s: float(under_way(at_s)),
}
OPERATOR: Final[dict[str, Callable[[int], float]]] = {
    "headrace_operator_queue_resources": lambda _: 1.0,
    'headrace_operator_objects{kind="StreamCluster",condition="Ready",status="False"}': lambda at_s: float(
        FIRST_S <= at_s < went_s(NODES)
    ),
    'headrace_operator_objects{kind="StreamCluster",condition="Ready",status="True"}': lambda at_s: float(
        not FIRST_S <= at_s < went_s(NODES)
    ),
    'headrace_operator_objects{kind="Topic",condition="Ready",status="Unknown"}': lambda at_s: float(
        went_s(0) <= at_s < went_s(1)
    ),
    'headrace_operator_reconcile_errors_total{kind="StreamCluster",error="ApiError"}': lambda at_s: float(
        sum(went_s(node) <= at_s for node in range(NODES))
    ),
    "headrace_operator_missed_changes_total": lambda _: 0.0,
    'headrace_job_lag_records{streamjob="clean"}': lambda at_s: 1000.0 if under_way(at_s) else 10.0,
    'headrace_job_lag_seconds{streamjob="clean"}': lambda at_s: 60.0 if under_way(at_s) else 2.0,
    'headrace_job_batches_total{streamjob="clean"}': lambda at_s: float(at_s // 60),
    'headrace_job_start_time_seconds{streamjob="clean"}': lambda _: OLD,
}


def labelled(name: str, labels: str) -> str:
    """Return the series with additional labels."""
    bare, _, own = name.rstrip("}").partition("{")
    return f"{bare}{{{labels}{',' + own if own else ''}}}"


def series() -> dict[str, Values]:
    """Return all series of the restart."""
    times = range(0, MINUTES * 60, STEP_S)
    found: dict[str, Values] = {}
    for node in range(NODES):
        back_s = went_s(node) + AWAY_S
        # The former pod, and its replacement, whose address differs, and is known once the pod is up.
        for before, instance in ((True, f"10.0.1.{node}:8080"), (False, f"10.0.2.{node}:8080")):
            at = f'namespace="factory",job="plant",pod="plant-{node}",instance="{instance}"'
            told = [at_s < went_s(node) if before else at_s >= back_s for at_s in times]
            listed = [at_s < went_s(node) + 30 if before else at_s >= back_s - 30 for at_s in times]
            found[f"up{{{at}}}"] = [
                float(answers) if known else None for answers, known in zip(told, listed, strict=True)
            ]
            for name, gauge in GAUGES.items():
                found[labelled(name, f'{at},node="{node}"')] = [
                    round(gauge(node, at_s), 3) if answers else None for at_s, answers in zip(times, told, strict=True)
                ]
    for name, value in OPERATOR.items():
        found[labelled(name, 'namespace="ops",job="headrace-operator"')] = [value(at_s) for at_s in times]
    return found


ROLLING_RESTART: Final = Scenario("a rolling restart", series(), {minute: [] for minute in range(1, MINUTES)})
assert went_s(NODES) + 600 < MINUTES * PER_MINUTE * STEP_S, "it goes on after the last node is back"
