"""Every metric of a node, declared once. A node reports no others, and docs/observability.md lists them.

Names follow Prometheus's rules: base units, `_total` for counters. Existing names stay, since dashboards use them. Only
metrics that an administrator turns on have a label for the topic, since there may be a million topics.
"""

from collections.abc import Mapping
from typing import Final

from headrace.metrics.metric import Metric, counter, gauge, histogram

# --- the node

READY = gauge("ready", "Whether the node has its containers and is not behind")
CONTROLLER = gauge("controller", "Whether the node is the cluster's controller")
NODE_INFO = gauge("node_info", "1, with the node's version and its cluster's id", "version", "cluster")
NODES = gauge(
    "nodes",
    "Registered nodes by how the controller finds them: alive, in_doubt or dead; reported by the controller only",
    "state",
)
START_TIME = gauge("start_time_seconds", "When the process started, in seconds since 1970")
CPU_SECONDS = counter("cpu_seconds_total", "Processor time that the process used")
RESIDENT_BYTES = gauge("resident_bytes", "Resident memory of the process")
OPEN_DESCRIPTORS = gauge("open_descriptors", "File descriptors in use")
DESCRIPTORS_LIMIT = gauge("descriptors_limit", "Limit of file descriptors")
LOOP_LAG = histogram("loop_lag_seconds", "How late the event loop ran a timer that is due every 10 ms")
STORE_SILENT = gauge("store_silent_seconds", "How long the cluster store has not answered")
CATALOG_DAMAGED = gauge("catalog_damaged", "Whether the catalog's tables of this node are damaged")
STREAMS = gauge("streams", "Streams in the catalog, of the whole cluster; every node reports the same total")
TOPICS = gauge("topics", "Topics in the catalog, of the whole cluster; every node reports the same total")
PARTITIONS = gauge("partitions", "Partitions in the catalog, of the whole cluster; every node reports the same total")
TOPICS_IN_MEMORY = gauge("topics_in_memory", "Topics that this node holds in memory")
TRACE_SPANS = counter(
    "trace_spans_total",
    "Spans of traces by outcome: exported, or dropped because the collector did not accept them in time; only if "
    "traces are on",
    "outcome",
)

# --- the disk

DISK_FREE = gauge("disk_free_bytes", "Free bytes on the disk")
DISK_TOTAL = gauge("disk_total_bytes", "Size of the disk")
STORED = gauge("stored_bytes", "Bytes on disk of all replicas of this node")
WAITING = gauge("waiting_bytes", "Bytes that wait for the disk")
GIVEN_BACK = counter("given_back_bytes_total", "Bytes of disk freed by retention, deletion and regrouping")
CHUNKS_DROPPED = counter("chunks_dropped_total", "Whole chunks freed by retention and deletion")
CHUNKS_REGROUPED = counter("chunks_regrouped_total", "Chunks regrouped")
SCRUB_RUNNING = gauge("scrub_running", "Whether a scrub of all replicas of this node is under way")
SCRUB_FINDINGS = counter("scrub_findings_total", "Damage that scrubs found in replicas of this node")

# --- clients

CONNECTIONS = gauge("connections", "Connections of clients")
CONNECTIONS_LIMIT = gauge("connections_limit", "Limit of connections of clients")
CONNECTIONS_TOTAL = counter("connections_total", "Connections of clients since the start")
CONNECTIONS_REFUSED = counter("connections_refused_total", "Connections of clients refused because a limit was reached")
CONNECTIONS_MADE_WAY = counter(
    "connections_made_way_total", "Silent or idle connections closed to make room for others"
)
CONNECTIONS_SILENT = counter("connections_silent_total", "Connections closed because no first request came in time")
REQUESTS = counter("requests_total", "Requests since the start")
PRODUCE_REQUESTS = counter("produce_requests_total", "Produce requests since the start")
FETCH_REQUESTS = counter("fetch_requests_total", "Fetch requests since the start")
IN_BYTES = counter("in_bytes_total", "Bytes of Produce requests since the start")
OUT_BYTES = counter("out_bytes_total", "Bytes of records fetched here since the start")
REQUEST_SECONDS = histogram(
    "request_seconds",
    "From a request's arrival to its answer, by Kafka's name of the API; that of a Fetch includes its wait for records",
    "api",
)
REQUEST_PHASE_SECONDS = histogram(
    "request_phase_seconds",
    "The same in parts: queue, append, sync, replicate (where there are followers) and answer of Produce; queue, "
    "handle and answer of Fetch",
    "api",
    "phase",
)
REQUEST_ERRORS = counter(
    "request_errors_total",
    "Errors in answers to clients, by API and Kafka's name of the code: one for each partition that was refused",
    "api",
    "code",
)
THROTTLED_SECONDS = counter(
    "throttled_seconds_total", "How long clients were told to wait, by the quota that they had exceeded", "quota"
)

# --- log and replication

LOG_SYNC_SECONDS = histogram("log_sync_seconds", "One write and sync (fdatasync) of what waited in a container's log")
COMMIT_SECONDS = histogram(
    "commit_seconds",
    "From the start of a sync cycle of a container led here until all in-sync replicas have it; only of containers "
    "with followers",
)
PEER_CALL_SECONDS = histogram("peer_call_seconds", "Round trip of calls to other nodes that were answered", "call")
CONTAINERS = gauge(
    "containers",
    "Containers that the node leads: in_sync, behind (fewer replicas in sync than configured) or stalled (too few to "
    "take writes); waiting: no node can lead them, reported by the controller only",
    "state",
)
CONTAINER_EPOCH = gauge("container_epoch", "Epoch of a container, as last seen", "container", "kind")
CONTAINER_END = gauge("container_end_position", "Where a replica's log ends", "container", "kind")
CONTAINER_COMMITTED = gauge(
    "container_committed_position",
    "The position up to which a replica knows its log to be committed",
    "container",
    "kind",
)
CONTAINER_STORED = gauge("container_stored_bytes", "Bytes on disk of a replica", "container", "kind")
CONTAINER_LEADS = gauge("container_leads", "Whether this node leads a container", "container", "kind")
ROLLS = counter(
    "rolls_total",
    "Rolls that ended on this node; each continued a partition in a new partitionlet",
)
FAILOVERS = counter(
    "failovers_total", "Containers to which the controller gave another leader because the former one had failed"
)
HAND_OVERS = counter(
    "hand_overs_total",
    "Containers to which the controller gave another leader although the former one was healthy: it was about to "
    "stop, was drained, or led more than its share",
)
BALANCE_MOVES = counter("balance_moves_total", "Containers and partitions that the controller moved for balance")

# --- traffic

STREAM_IN_BYTES = counter("stream_in_bytes_total", "Bytes of record batches produced here", "stream")
STREAM_IN_RECORDS = counter("stream_in_records_total", "Records produced here", "stream")
STREAM_OUT_BYTES = counter("stream_out_bytes_total", "Bytes of record batches fetched here", "stream")
STREAM_OUT_RECORDS = counter("stream_out_records_total", "Records fetched here", "stream")
TOPIC_IN_BYTES = counter(
    "topic_in_bytes_total",
    "Bytes of record batches produced here, by topic; only if --metrics-topics is set",
    "stream",
    "topic",
)
TOPIC_IN_RECORDS = counter(
    "topic_in_records_total", "Records produced here, by topic; only if --metrics-topics is set", "stream", "topic"
)
TOPIC_OUT_BYTES = counter(
    "topic_out_bytes_total",
    "Bytes of record batches fetched here, by topic; only if --metrics-topics is set",
    "stream",
    "topic",
)
TOPIC_OUT_RECORDS = counter(
    "topic_out_records_total", "Records fetched here, by topic; only if --metrics-topics is set", "stream", "topic"
)
SERIES_DROPPED = gauge(
    "series_dropped", "Streams, topics, groups or links beyond the limit, which have no series of their own", "of"
)

# --- groups

GROUPS = gauge("groups", "Consumer groups that the node coordinates")
GROUP_LAG_RECORDS = gauge("group_lag_records", "Records that a group has not consumed yet, of all partitions", "group")
GROUP_LAG_MAX_RECORDS = gauge("group_lag_max_records", "The same of the partition with the largest lag", "group")
GROUP_LAG_SECONDS = gauge(
    "group_lag_seconds", "How long the oldest record that a group has not consumed yet has existed", "group"
)
GROUP_MEMBERS = gauge("group_members", "Members of a group", "group")

# --- links

LINK_STATE = gauge(
    "link_state", "1 for the state that a link is in on this node: Connecting, CatchingUp, CaughtUp, Paused, Failed",
    "link", "state",
)  # fmt: skip
LINK_LAG_RECORDS = gauge("link_lag_records", "Records that a link has not copied yet, of partitions led here", "link")
LINK_LAG_BYTES = gauge("link_lag_bytes", "The same in bytes, estimated", "link")
LINK_LAG_SECONDS = gauge(
    "link_lag_seconds", "How long the source has had the oldest record that is not copied yet", "link"
)
LINK_RECORDS = counter("link_records_total", "Records that a link copied here", "link")
LINK_BYTES = counter("link_bytes_total", "Bytes that a link copied here", "link")
LINK_FAILURES = counter("link_failures_total", "Failures of a link on this node; it keeps retrying", "link")
LINK_BLOCKED = gauge(
    "link_blocked_partitions", "Partitions that a link cannot copy at present", "link", unit="partitions"
)

SET_ASIDE = counter(
    "set_aside_records_total",
    "Records that diverged from their topic's home, and were set aside",
)

# --- security

CERTIFICATE_EXPIRY = gauge(
    "certificate_expiry_seconds",
    "Seconds until the certificate of a listener expires; negative once it has expired",
    "listener",
)
LOGINS = counter("logins_total", "Logins of clients by SASL that succeeded", "mechanism")
LOGINS_REFUSED = counter("logins_refused_total", "Logins of clients by SASL that were refused", "mechanism")
TLS_FAILED = counter("tls_handshakes_failed_total", "TLS handshakes of clients that failed", "listener")

SECTIONS: Final[Mapping[str, tuple[Metric, ...]]] = {
    "The node": (
        *(READY, CONTROLLER, NODES, NODE_INFO, START_TIME, CPU_SECONDS, RESIDENT_BYTES, OPEN_DESCRIPTORS),
        *(
            DESCRIPTORS_LIMIT,
            LOOP_LAG,
            STORE_SILENT,
            CATALOG_DAMAGED,
            STREAMS,
            TOPICS,
            PARTITIONS,
            TOPICS_IN_MEMORY,
            TRACE_SPANS,
        ),
    ),
    "The disk": (
        *(
            DISK_FREE,
            DISK_TOTAL,
            STORED,
            WAITING,
            GIVEN_BACK,
            CHUNKS_DROPPED,
            CHUNKS_REGROUPED,
            SCRUB_RUNNING,
            SCRUB_FINDINGS,
        ),
    ),
    "Clients": (
        *(CONNECTIONS, CONNECTIONS_LIMIT, CONNECTIONS_TOTAL, CONNECTIONS_REFUSED, CONNECTIONS_MADE_WAY),
        *(CONNECTIONS_SILENT, REQUESTS, PRODUCE_REQUESTS, FETCH_REQUESTS, IN_BYTES, OUT_BYTES),
        *(REQUEST_SECONDS, REQUEST_PHASE_SECONDS, REQUEST_ERRORS, THROTTLED_SECONDS),
    ),
    "Log and replication": (
        *(LOG_SYNC_SECONDS, COMMIT_SECONDS, PEER_CALL_SECONDS, CONTAINERS, CONTAINER_EPOCH, CONTAINER_END),
        *(CONTAINER_COMMITTED, CONTAINER_STORED, CONTAINER_LEADS, ROLLS, FAILOVERS, HAND_OVERS, BALANCE_MOVES),
    ),
    "Traffic": (
        *(STREAM_IN_BYTES, STREAM_IN_RECORDS, STREAM_OUT_BYTES, STREAM_OUT_RECORDS),
        *(TOPIC_IN_BYTES, TOPIC_IN_RECORDS, TOPIC_OUT_BYTES, TOPIC_OUT_RECORDS, SERIES_DROPPED),
    ),
    "Groups": (GROUPS, GROUP_LAG_RECORDS, GROUP_LAG_MAX_RECORDS, GROUP_LAG_SECONDS, GROUP_MEMBERS),
    "Links": (
        *(LINK_STATE, LINK_LAG_RECORDS, LINK_LAG_BYTES, LINK_LAG_SECONDS, LINK_RECORDS, LINK_BYTES, LINK_FAILURES),
        *(LINK_BLOCKED, SET_ASIDE),
    ),
    "Security": (CERTIFICATE_EXPIRY, LOGINS, LOGINS_REFUSED, TLS_FAILED),
}
"""All metrics by section, in the order of a scrape and of the documentation."""
ALL: Final[tuple[Metric, ...]] = tuple(metric for section in SECTIONS.values() for metric in section)
