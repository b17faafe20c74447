"""What makes each alert fire, and clear."""

from collections.abc import Mapping, Sequence
from typing import Final

from .promtool import PER_MINUTE, STEP_S, Scenario, Values

AT: Final = 'namespace="factory",job="plant"'
NODE: Final = f'{AT},instance="10.0.0.1:8080",node="1"'
EXPIRY: Final = f'headrace_certificate_expiry_seconds{{{NODE},listener="clients"}}'
RECONCILE_ERRORS: Final = 'headrace_operator_reconcile_errors_total{job="operator",kind="Topic",error="ApiError"}'
TOPICS_READY: Final = 'headrace_operator_objects{job="operator",kind="Topic",condition="Ready",status="%s"}'
OPERATOR: Final = 'headrace_operator_queue_resources{job="operator"}'
DAY_S: Final = 86_400
OLD: Final = -100_000.0
"""The start time of a node that started long ago; promtool's time begins at 0."""


def steps(*parts: tuple[float, float | None], per_minute: int = PER_MINUTE) -> list[float | None]:
    """Return a series from pairs of minutes and the value during them."""
    return [value for minutes, value in parts for _ in range(round(minutes * per_minute))]


def rising(*parts: tuple[float, float]) -> list[float | None]:
    """Return a counter from pairs of minutes and its rise per minute during them."""
    found: list[float | None] = []
    total = 0.0
    for minutes, rate in parts:
        for _ in range(round(minutes * PER_MINUTE)):
            total = round(total + rate / PER_MINUTE, 6)
            found.append(total)
    return found


def starts(*at_minutes: float, until: float) -> list[float | None]:
    """Return the start time of a process that is restarted at these minutes."""
    found: list[float | None] = []
    for step in range(round(until * PER_MINUTE)):
        minute = step / PER_MINUTE
        found.append(max([OLD, *(60 * each for each in at_minutes if each <= minute)]))
    return found


def histogram(name: str, labels: str, *parts: tuple[float, bool], slow_le: float) -> dict[str, Values]:
    """Return a histogram from pairs of minutes and whether everything during them is slow: above `slow_le`; otherwise a
    quarter of that.
    """
    slow = rising(*((minutes, 600.0 if is_slow else 0.0) for minutes, is_slow in parts))
    everything = rising(*((minutes, 600.0) for minutes, _ in parts))
    fast = [round(a - b, 6) for a, b in zip(everything, slow, strict=True) if a is not None and b is not None]
    buckets: Mapping[str, Values] = {str(slow_le): fast, str(4 * slow_le): everything, "+Inf": everything}
    return {f'{name}_bucket{{{labels},le="{le}"}}': values for le, values in buckets.items()}


def case(
    alert: str,
    series: Mapping[str, Values],
    *,
    fires: int,
    clears: int,
    quiet: int = 0,
    also: Sequence[str] = (),
    interval_s: int = STEP_S,
) -> Scenario:
    """Return a case in which `alert` does not fire at `quiet` (minutes), fires at `fires`, and no longer at `clears`.
    `also` fire with it.
    """
    longest = max(map(len, series.values()))
    return Scenario(
        alert,
        {OPERATOR: [0.0] * longest, **series},
        {quiet: [], fires: sorted([alert, *also]), clears: []},
        interval_s,
    )


CASES: Final = (
    case(
        "HeadraceNodeDown",
        {
            f'up{{{AT},instance="10.0.0.1:8080"}}': steps((5, 1), (5, 0), (5, 1)),
            f"headrace_ready{{{NODE}}}": steps((5, 1), (5, None), (5, 1)),
            'up{job="something else",instance="10.0.0.9:80"}': steps((15, 0)),
        },
        quiet=7,
        fires=9,
        clears=11,
    ),
    case(
        "HeadraceNodeMissing",
        {
            f'headrace_nodes{{{NODE},state="dead"}}': steps((5, 0), (10, 1), (10, 1), (15, 0)),
            f'headrace_nodes{{{NODE},state="alive"}}': steps((5, 3), (20, 2), (15, 3)),
            f'up{{{AT},instance="10.0.0.3:8080"}}': steps((5, 1), (10, None), (10, 0), (15, 1)),
            f"headrace_start_time_seconds{{{NODE}}}": steps((40, OLD)),
        },
        quiet=9,
        fires=11,
        clears=16,
    ),
    case(
        "HeadraceNodeNotReady",
        {f"headrace_ready{{{NODE}}}": steps((5, 1), (5, 0), (5, 1))},
        quiet=7,
        fires=9,
        clears=11,
    ),
    case(
        "HeadraceNodeRestarts",
        {f"headrace_start_time_seconds{{{NODE}}}": starts(5, 7, 9, 11, until=60)},
        quiet=10,
        fires=12,
        clears=50,
    ),
    case(
        "HeadraceLoopLag",
        histogram("headrace_loop_lag_seconds", NODE, (10, False), (20, True), (15, False), slow_le=0.05),
        quiet=18,
        fires=29,
        clears=44,
    ),
    case(
        "HeadraceConnectionsNearLimit",
        {
            f"headrace_connections{{{NODE}}}": steps((5, 100), (10, 950), (5, 100)),
            f"headrace_connections_limit{{{NODE}}}": steps((20, 1000)),
        },
        quiet=9,
        fires=14,
        clears=16,
    ),
    case(
        "HeadraceDescriptorsNearLimit",
        {
            f"headrace_open_descriptors{{{NODE}}}": steps((5, 100), (10, 950), (5, 100)),
            f"headrace_descriptors_limit{{{NODE}}}": steps((20, 1000)),
        },
        quiet=9,
        fires=14,
        clears=16,
    ),
    case(
        "HeadraceRequestErrors",
        {
            f'headrace_request_errors_total{{{NODE},api="Produce",code="KAFKA_STORAGE_ERROR"}}': rising(
                (5, 0), (15, 60), (15, 0)
            ),
            f'headrace_request_errors_total{{{NODE},api="Produce",code="NOT_LEADER_OR_FOLLOWER"}}': rising((35, 60)),
        },
        quiet=7,
        fires=19,
        clears=34,
    ),
    case(
        "HeadraceContainerWaits",
        {f'headrace_containers{{{NODE},state="waiting"}}': steps((5, 0), (5, 3), (5, 0))},
        quiet=5,
        fires=7,
        clears=11,
    ),
    case(
        "HeadraceContainerStalled",
        {f'headrace_containers{{{NODE},state="stalled"}}': steps((5, 0), (5, 3), (5, 0))},
        quiet=5,
        fires=7,
        clears=11,
    ),
    case(
        "HeadraceUnderReplicated",
        {
            f'headrace_containers{{{NODE},state="behind"}}': steps((5, 0), (20, 2), (5, 0)),
            f"headrace_start_time_seconds{{{NODE}}}": starts(until=30),
        },
        quiet=14,
        fires=16,
        clears=26,
    ),
    case(
        "HeadraceControllerAbsent",
        {f"headrace_controller{{{NODE}}}": steps((5, 1), (5, 0), (5, 1))},
        quiet=5,
        fires=7,
        clears=11,
    ),
    case(
        "HeadraceTwoControllers",
        {
            f"headrace_controller{{{NODE}}}": steps((15, 1)),
            f'headrace_controller{{{AT},instance="10.0.0.2:8080",node="2"}}': steps((5, 0), (5, 1), (5, 0)),
        },
        quiet=7,
        fires=9,
        clears=11,
    ),
    case(
        "HeadraceFailoverStorm",
        {
            f"headrace_failovers_total{{{NODE}}}": rising((5, 0), (40, 1), (20, 0)),
            f"headrace_start_time_seconds{{{NODE}}}": starts(until=65),
        },
        quiet=20,
        fires=40,
        clears=64,
    ),
    case(
        "HeadraceStoreSilent",
        {f"headrace_store_silent_seconds{{{NODE}}}": steps((5, 0), (0.5, 20), (5, 60), (5, 0))},
        quiet=5,
        fires=6,
        clears=11,
    ),
    case(
        "HeadraceDiskLow",
        {
            f"headrace_disk_free_bytes{{{NODE}}}": steps((5, 50), (20, 12), (5, 50)),
            f"headrace_disk_total_bytes{{{NODE}}}": steps((30, 100)),
        },
        quiet=14,
        fires=16,
        clears=26,
    ),
    case(
        "HeadraceDiskFull",
        {
            f"headrace_disk_free_bytes{{{NODE}}}": steps((5, 50), (5, 4), (5, 50)),
            f"headrace_disk_total_bytes{{{NODE}}}": steps((15, 100)),
        },
        quiet=5,
        fires=7,
        clears=11,
    ),
    case(
        "HeadraceDiskFullSoon",
        {
            f"headrace_disk_free_bytes{{{NODE}}}": [
                # 40 % free, falling by 2.5 % an hour, until space is freed.
                40_000 - (0 if minute < 60 else 2500 * (minute - 60) / 60) if minute < 480 else 60_000
                for minute in range(540)
            ],
            f"headrace_disk_total_bytes{{{NODE}}}": steps((540, 100_000), per_minute=1),
        },
        quiet=60,
        fires=470,
        clears=482,
        interval_s=60,
    ),
    case(
        "HeadraceSyncSlow",
        histogram("headrace_log_sync_seconds", NODE, (10, False), (25, True), (15, False), slow_le=0.1),
        quiet=20,
        fires=34,
        clears=49,
    ),
    case(
        "HeadraceScrubFoundDamage",
        {f"headrace_scrub_findings_total{{{NODE}}}": steps((5, 0), (420, 1), per_minute=1)},
        quiet=4,
        fires=7,
        clears=380,
        interval_s=60,
    ),
    case(
        "HeadraceCatalogDamaged",
        {f"headrace_catalog_damaged{{{NODE}}}": steps((5, 0), (5, 1), (5, 0))},
        quiet=4,
        fires=6,
        clears=11,
    ),
    case(
        "HeadraceGroupLag",
        {
            f'headrace_group_lag_seconds{{{NODE},group="billing"}}': steps((5, 3), (25, 1000), (5, 2)),
            f'headrace_group_members{{{NODE},group="billing"}}': steps((5, 2), (30, 0)),
            f'headrace_group_lag_seconds{{{NODE},group="left long ago"}}': steps((35, 1_000_000)),
            f'headrace_group_members{{{NODE},group="left long ago"}}': steps((35, 0)),
        },
        quiet=19,
        fires=21,
        clears=31,
    ),
    case(
        "HeadraceLinkFailed",
        {f'headrace_link_state{{{NODE},link="north",state="Failed"}}': steps((5, 0), (10, 1), (5, 0))},
        quiet=9,
        fires=11,
        clears=16,
    ),
    case(
        "HeadraceLinkLag",
        {f'headrace_link_lag_seconds{{{NODE},link="north"}}': steps((5, 1), (15, 400), (5, 1))},
        quiet=14,
        fires=16,
        clears=21,
    ),
    case(
        "HeadraceLinkBlocked",
        {f'headrace_link_blocked_partitions{{{NODE},link="north"}}': steps((5, 0), (15, 4), (5, 0))},
        quiet=14,
        fires=16,
        clears=21,
    ),
    case(
        "HeadraceRecordsSetAside",
        {f"headrace_set_aside_records_total{{{NODE}}}": rising((5, 0), (1, 50), (70, 0))},
        quiet=4,
        fires=7,
        clears=75,
    ),
    case(
        "HeadraceCertificateExpires",
        {EXPIRY: steps((90, 13.0 * DAY_S), (5, 90 * DAY_S))},
        quiet=59,
        fires=61,
        clears=91,
    ),
    case(
        "HeadraceCertificateExpiresNow",
        {EXPIRY: steps((90, 1.0 * DAY_S), (5, 90 * DAY_S))},
        quiet=4,
        fires=61,
        clears=91,
        also=["HeadraceCertificateExpires"],
    ),
    case(
        "HeadraceLoginsRefused",
        {f'headrace_logins_refused_total{{{NODE},mechanism="PLAIN"}}': rising((5, 0), (30, 10), (15, 0))},
        quiet=10,
        fires=30,
        clears=49,
    ),
    Scenario(
        "HeadraceOperatorAbsent",
        {OPERATOR: steps((5, 0), (10, None), (5, 0))},
        {9: [], 11: ["HeadraceOperatorAbsent"], 16: []},
    ),
    case(
        "HeadraceReconcilesFail",
        {RECONCILE_ERRORS: rising((5, 0), (45, 0.2), (15, 0))},
        quiet=30,
        fires=45,
        clears=64,
    ),
    case(
        "HeadraceResourceNotReady",
        {
            TOPICS_READY % "False": steps((5, 0), (20, 1), (5, 0)),
            TOPICS_READY % "True": steps((30, 7)),
        },
        quiet=19,
        fires=21,
        clears=26,
    ),
    case(
        "HeadraceWatchesMiss",
        {'headrace_operator_missed_changes_total{job="operator"}': rising((5, 0), (10, 1), (40, 0))},
        quiet=5,
        fires=14,
        clears=54,
    ),
    case(
        "HeadraceJobLag",
        {'headrace_job_lag_seconds{namespace="factory",streamjob="clean"}': steps((5, 1), (15, 700), (5, 1))},
        quiet=14,
        fires=16,
        clears=21,
    ),
    case(
        "HeadraceJobStuck",
        {
            'headrace_job_lag_records{namespace="factory",streamjob="clean"}': steps((60, 5)),
            'headrace_job_batches_total{namespace="factory",streamjob="clean"}': rising((10, 4), (40, 0), (10, 4)),
        },
        quiet=30,
        fires=45,
        clears=52,
    ),
    case(
        "HeadraceJobRestarts",
        {'headrace_job_start_time_seconds{namespace="factory",streamjob="clean"}': starts(5, 7, 9, 11, until=60)},
        quiet=10,
        fires=12,
        clears=50,
    ),
)
