"""Grafana's dashboards for Headrace, as the chart has them: `make docs` writes charts/headrace/dashboards.

.venv/bin/python .ci/dashboards.py
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from grafana import BAD, GOOD, WORSE, Dashboard, Query, Variable, graph, stat

FOLDER: Final = Path(__file__).resolve().parents[1] / "charts" / "headrace" / "dashboards"
QUANTILES: Final = (0.5, 0.99, 0.999)
ANY_IS_BAD: Final = ((1, BAD),)
ANY_IS_WORSE: Final = ((1, WORSE),)


def rate(metric: str, *by: str, more: str = "") -> str:
    """Return the query for a counter's rate."""
    grouped = f" by ({', '.join(by)}) " if by else ""
    return f"sum{grouped}(rate({metric}{{{{S}}{more}}}[$__rate_interval]))"


def quantile(share: float, metric: str, *by: str, more: str = "") -> str:
    """Return the query for a quantile of a histogram."""
    labels = ", ".join(("le", *by))
    return f"histogram_quantile({share:g}, sum by ({labels}) (rate({metric}_bucket{{{{S}}{more}}}[$__rate_interval])))"


def quantiles(metric: str, *, more: str = "") -> Sequence[Query]:
    """Return the usual quantiles, over all series together."""
    return [(quantile(share, metric, more=more), f"p{share * 100:g}") for share in QUANTILES]


def total(metric: str, *by: str, more: str = "", how: str = "sum") -> str:
    """Return the query for a gauge's sum, or for another aggregation `how`."""
    return f"{how} by ({', '.join(by)}) ({metric}{{{{S}}{more}}})" if by else f"{how}({metric}{{{{S}}{more}}})"


def most(metric: str, what: str = "") -> Query:
    """Return the query for the 20 topics with the highest rate."""
    query = rate(metric, "stream", "topic", more=_STREAM)
    return f"topk(20, {query})", f"{{{{stream}}}}:{{{{topic}}}}{what}"


def none_is_zero(query: str) -> str:
    """Return the query with 0 instead of no data, for panels with a single number, which would be empty otherwise."""
    return f"{query} or vector(0)"


PRODUCE_PHASES: Final = graph(
    "Produce, by phase (p99)",
    "Where the time of writes goes: queue (behind other requests), append, sync (this disk), replicate (other "
    "nodes), answer.",
    "s",
    (quantile(0.99, "headrace_request_phase_seconds", "phase", more=',api="Produce"'), "{{phase}}"),
)
ERRORS: Final = graph(
    "Errors that clients get",
    "By API and Kafka's name of the error. NOT_LEADER_OR_FOLLOWER belongs to every change of leaders.",
    "ops",
    (rate("headrace_request_errors_total", "api", "code"), "{{api}} {{code}}"),
)
SYNC: Final = graph(
    "Sync of the log (p99)",
    "One write and fdatasync of a container's log; producers with acks=all wait for it.",
    "s",
    (quantile(0.99, "headrace_log_sync_seconds", "node"), "node {{node}}"),
    steps=((0.1, WORSE),),
)
COMMIT: Final = graph(
    "Commit (p99)",
    "From the start of a sync until every replica in sync has the records.",
    "s",
    (quantile(0.99, "headrace_commit_seconds", "node"), "node {{node}}"),
)
PEERS: Final = graph(
    "Round trip between nodes (p99)",
    "Of calls that were answered; Probe is the health probe.",
    "s",
    (quantile(0.99, "headrace_peer_call_seconds", "call"), "{{call}}"),
)
LOOP: Final = graph(
    "Loop lag (p99)",
    "How late the event loop of a node runs what is due; every request waits that much longer.",
    "s",
    (quantile(0.99, "headrace_loop_lag_seconds", "node"), "node {{node}}"),
    steps=((0.05, WORSE),),
)
DISK: Final = graph(
    "Free room on the disks",
    "Share of the file system. Alerts fire below 15 % and 5 %.",
    "percentunit",
    ("headrace_disk_free_bytes{{S}} / headrace_disk_total_bytes{{S}}", "node {{node}}"),
    steps=((0.15, GOOD),),
    highest=1,
)
CPU: Final = graph(
    "Processor",
    "Cores that a node uses; its loop can use one.",
    "short",
    (rate("headrace_cpu_seconds_total", "node"), "node {{node}}"),
)
MEMORY: Final = graph(
    "Memory", "Resident memory of the process.", "bytes", (total("headrace_resident_bytes", "node"), "node {{node}}")
)
CONNECTIONS: Final = graph(
    "Connections of clients",
    "Share of a node's limit.",
    "percentunit",
    ("headrace_connections{{S}} / headrace_connections_limit{{S}}", "node {{node}}"),
    steps=((0.9, WORSE),),
    highest=1,
)

CLUSTER: Final = Dashboard(
    "cluster",
    "Headrace / Cluster",
    "Whether a cluster is well, what it carries, how fast it answers, and how much room there is.",
    "headrace_ready",
    [
        (
            "Health",
            [
                stat("Ready nodes", "Nodes that have their containers and are not behind.", "short",
                     none_is_zero(total("headrace_ready")), steps=()),
                stat("Nodes that do not answer", "Targets that Prometheus does not reach.", "short",
                     none_is_zero("count(up{{S}} == 0)"), steps=ANY_IS_WORSE),
                stat("Controllers", "One, always.", "short", none_is_zero(total("headrace_controller")),
                     steps=((0, WORSE), (1, GOOD), (2, WORSE))),
                stat("Behind", "Containers with fewer replicas in sync than their volume asks for.", "short",
                     none_is_zero(total("headrace_containers", more=',state="behind"')), steps=ANY_IS_BAD),
                stat("Stalled", "Containers with too few replicas in sync to take writes.", "short",
                     none_is_zero(total("headrace_containers", more=',state="stalled"')), steps=ANY_IS_WORSE),
                stat("Waiting", "Containers that nobody can lead.", "short",
                     none_is_zero(total("headrace_containers", more=',state="waiting"')), steps=ANY_IS_WORSE),
                stat("Store silent", "The longest time for which the cluster store has not answered a node.", "s",
                     total("headrace_store_silent_seconds", how="max"), steps=((5, BAD), (30, WORSE))),
                stat("Partitions", "Partitions in the catalog.", "short",
                     total("headrace_partitions", how="max"), steps=()),
            ],
        ),
        (
            "Traffic",
            [
                graph("Bytes in", "Of Produce requests.", "Bps",
                      (rate("headrace_in_bytes_total", "node"), "node {{node}}"), stacked=True),
                graph("Bytes out", "Of records fetched.", "Bps",
                      (rate("headrace_out_bytes_total", "node"), "node {{node}}"), stacked=True),
                graph("Records", "Produced and fetched, by all streams.", "cps",
                      (rate("headrace_stream_in_records_total"), "in"),
                      (rate("headrace_stream_out_records_total"), "out")),
                graph("Requests", "Of clients.", "reqps",
                      (rate("headrace_requests_total", "node"), "node {{node}}"), stacked=True),
                ERRORS,
                CONNECTIONS,
            ],
        ),
        (
            "Latency",
            [
                graph("Produce", "From a request's arrival to its answer.", "s",
                      *quantiles("headrace_request_seconds", more=',api="Produce"')),
                graph("By API (p99)", "That of a Fetch includes the wait for records that its client asked for.", "s",
                      (quantile(0.99, "headrace_request_seconds", "api"), "{{api}}")),
                PRODUCE_PHASES,
                SYNC,
                COMMIT,
                LOOP,
            ],
        ),
        (
            "Replication and changes",
            [
                graph("Containers", "By the state of their replicas.", "short",
                      (total("headrace_containers", "state"), "{{state}}"), stacked=True),
                graph("Failovers, hand-overs, rolls, moves", "Containers that got another leader because theirs failed "
                      "or stopped; partitions that continued in another container; moves for balance.", "cps",
                      (rate("headrace_failovers_total"), "failovers"),
                      (rate("headrace_hand_overs_total"), "hand-overs"), (rate("headrace_rolls_total"), "rolls"),
                      (rate("headrace_balance_moves_total"), "moves for balance")),
                PEERS,
                graph("Nodes", "By how the controller finds them: alive, in doubt, dead.", "short",
                      (total("headrace_nodes", "state"), "{{state}}"), stacked=True),
                graph("Versions", "Nodes by the version that they run; an upgrade is under way where there are two.",
                      "short", (total("headrace_node_info", "version"), "{{version}}"), stacked=True),
            ],
        ),
        (
            "Room",
            [
                DISK,
                graph("Stored", "What the replicas of a node occupy.", "bytes",
                      (total("headrace_stored_bytes", "node"), "node {{node}}"), stacked=True),
                graph("Catalog", "Streams, topics and partitions of the cluster.", "short",
                      (total("headrace_streams", how="max"), "streams"),
                      (total("headrace_topics", how="max"), "topics"),
                      (total("headrace_partitions", how="max"), "partitions")),
                CPU,
                MEMORY,
                graph("Uptime", "Since a node's process started.", "s",
                      ("time() - headrace_start_time_seconds{{S}}", "node {{node}}")),
            ],
        ),
    ],
)  # fmt: skip

NODE: Final = Dashboard(
    "node",
    "Headrace / Node",
    "One node in full: its process, its requests by API and phase, its disk, its containers.",
    "headrace_ready",
    [
        (
            "Health",
            [
                stat("Ready", "Whether it has its containers and is not behind.", "short",
                     total("headrace_ready", how="min"), steps=((0, WORSE), (1, GOOD))),
                stat("Leads", "Containers that it leads.", "short", total("headrace_container_leads"), steps=()),
                stat("Lack replicas", "Of those that it leads.", "short",
                     none_is_zero(total("headrace_containers", more=',state=~"behind|stalled"')), steps=ANY_IS_BAD),
                stat("Catalog damaged", "Whether the tables of its catalog are damaged.", "short",
                     total("headrace_catalog_damaged", how="max"), steps=ANY_IS_WORSE),
                stat("Damage found", "By scrubs, since it started.", "short",
                     none_is_zero(total("headrace_scrub_findings_total")), steps=ANY_IS_WORSE),
                stat("Store silent", "How long the cluster store has not answered.", "s",
                     total("headrace_store_silent_seconds", how="max"), steps=((5, BAD), (30, WORSE))),
                stat("Certificate", "Until the first of its certificates expires.", "s",
                     total("headrace_certificate_expiry_seconds", how="min"),
                     steps=((-1e12, WORSE), (2 * 86_400, BAD), (14 * 86_400, GOOD))),
                stat("Uptime", "Since its process started.", "s", "time() - max(headrace_start_time_seconds{{S}})",
                     steps=()),
            ],
        ),
        (
            "Process",
            [
                CPU,
                MEMORY,
                LOOP,
                CONNECTIONS,
                graph("Connections that ended", "Refused at a limit, closed to make way for others, or silent.", "cps",
                      (rate("headrace_connections_refused_total"), "refused"),
                      (rate("headrace_connections_made_way_total"), "made way"),
                      (rate("headrace_connections_silent_total"), "silent"),
                      (rate("headrace_connections_total"), "opened")),
                graph("File descriptors", "Share of the process's limit.", "percentunit",
                      ("headrace_open_descriptors{{S}} / headrace_descriptors_limit{{S}}", "node {{node}}"),
                      steps=((0.9, WORSE),), highest=1),
            ],
        ),
        (
            "Requests",
            [
                graph("By API", "Requests in a second.", "reqps",
                      (rate("headrace_request_seconds_count", "api"), "{{api}}"), stacked=True),
                graph("Time by API (p99)", "From arrival to answer; a Fetch's includes its wait for records.", "s",
                      (quantile(0.99, "headrace_request_seconds", "api"), "{{api}}")),
                ERRORS,
                PRODUCE_PHASES,
                graph("Fetch, by phase (p99)", "queue, handle (including the wait for records), answer.", "s",
                      (quantile(0.99, "headrace_request_phase_seconds", "phase", more=',api="Fetch"'), "{{phase}}")),
                graph("Throttled", "Seconds per second that clients have to wait, by exhausted quota.", "short",
                      (rate("headrace_throttled_seconds_total", "quota"), "{{quota}}")),
                graph("Bytes", "Of Produce requests; of records fetched.", "Bps",
                      (rate("headrace_in_bytes_total"), "in"), (rate("headrace_out_bytes_total"), "out")),
                graph("Produce and Fetch", "Requests in a second.", "reqps",
                      (rate("headrace_produce_requests_total"), "Produce"),
                      (rate("headrace_fetch_requests_total"), "Fetch")),
                graph("Logins", "By SASL; and TLS handshakes that failed.", "cps",
                      (rate("headrace_logins_total", "mechanism"), "{{mechanism}}"),
                      (rate("headrace_logins_refused_total", "mechanism"), "{{mechanism}} refused"),
                      (rate("headrace_tls_handshakes_failed_total", "listener"), "{{listener}} handshakes failed")),
            ],
        ),
        (
            "Disk and replication",
            [
                SYNC,
                COMMIT,
                PEERS,
                DISK,
                graph("Waits for the disk", "Appended, and not on disk yet.", "bytes",
                      (total("headrace_waiting_bytes", "node"), "node {{node}}")),
                graph("Given back", "Disk that retention, deletion and regrouping gave back.", "Bps",
                      (rate("headrace_given_back_bytes_total", "node"), "node {{node}}")),
                graph("Containers that it leads", "By the state of their replicas.", "short",
                      (total("headrace_containers", "state"), "{{state}}"), stacked=True),
                graph("Chunks", "Dropped whole, and regrouped; and whether a scrub is under way.", "short",
                      (rate("headrace_chunks_dropped_total"), "dropped in a second"),
                      (rate("headrace_chunks_regrouped_total"), "regrouped in a second"),
                      (total("headrace_scrub_running"), "scrubs under way")),
                graph("Topics in memory", "Topics that clients use.", "short",
                      (total("headrace_topics_in_memory", "node"), "node {{node}}")),
                graph("Spans of traces", "Exported to the collector, or dropped because it did not accept them in "
                      "time, if nodes have --tracing-endpoint.", "cps",
                      (rate("headrace_trace_spans_total", "outcome"), "{{outcome}}")),
            ],
        ),
    ],
    [Variable("node", 'label_values(headrace_ready{namespace=~"$namespace",job=~"$job",instance=~"$instance"}, node)')],
)  # fmt: skip

_STREAM: Final = ',stream=~"$stream"'
_GROUP: Final = ',group=~"$group"'
STREAMS: Final = Dashboard(
    "streams",
    "Headrace / Streams and groups",
    "What each stream carries, and how far behind each consumer group is.",
    "headrace_ready",
    [
        (
            "Streams",
            [
                graph("Bytes in", "Of record batches produced.", "Bps",
                      (rate("headrace_stream_in_bytes_total", "stream", more=_STREAM), "{{stream}}"),
                      width=12, stacked=True),
                graph("Bytes out", "Of record batches fetched.", "Bps",
                      (rate("headrace_stream_out_bytes_total", "stream", more=_STREAM), "{{stream}}"),
                      width=12, stacked=True),
                graph("Records in", "Produced.", "cps",
                      (rate("headrace_stream_in_records_total", "stream", more=_STREAM), "{{stream}}"),
                      width=12, stacked=True),
                graph("Records out", "Fetched.", "cps",
                      (rate("headrace_stream_out_records_total", "stream", more=_STREAM), "{{stream}}"),
                      width=12, stacked=True),
            ],
        ),
        (
            "Groups",
            [
                graph("Lag in seconds", "The age of the oldest record that a group has not consumed yet. An alert "
                      "fires above 15 minutes.", "s",
                      (total("headrace_group_lag_seconds", "group", more=_GROUP, how="max"), "{{group}}"),
                      width=12, steps=((900, WORSE),)),
                graph("Lag in records", "Of all partitions of a group.", "short",
                      (total("headrace_group_lag_records", "group", more=_GROUP, how="max"), "{{group}}"),
                      width=12),
                graph("Lag of the last partition", "In records, of the partition that is furthest behind. If it is "
                      "far above the average, one consumer or one key is the cause.", "short",
                      (total("headrace_group_lag_max_records", "group", more=_GROUP, how="max"),
                       "{{group}}")),
                graph("Members", "Consumers of a group.", "short",
                      (total("headrace_group_members", "group", more=_GROUP, how="max"), "{{group}}")),
                graph("Groups", "Groups that nodes coordinate.", "short", (total("headrace_groups"), "groups")),
            ],
        ),
        (
            "Topics, where nodes are told to count them (--metrics-topics)",
            [
                graph("Bytes in", "The 20 topics with the most.", "Bps",
                      most("headrace_topic_in_bytes_total"), width=12),
                graph("Bytes out", "The 20 topics with the most.", "Bps",
                      most("headrace_topic_out_bytes_total"), width=12),
                graph("Records", "The 20 topics with the most, in and out.", "cps",
                      most("headrace_topic_in_records_total", " in"),
                      most("headrace_topic_out_records_total", " out"), width=12),
                graph("Without series of their own", "Streams, topics, groups and links beyond the limit.", "short",
                      (total("headrace_series_dropped", "of", how="max"), "{{of}}"), width=12),
            ],
        ),
    ],
    [
        Variable("stream", 'label_values(headrace_stream_in_bytes_total{namespace=~"$namespace",job=~"$job"}, stream)'),
        Variable("group", 'label_values(headrace_group_members{namespace=~"$namespace",job=~"$job"}, group)'),
    ],
)  # fmt: skip

_LINK: Final = ',link=~"$link"'
_FAILED: Final = _LINK + ',state="Failed"'
LINKS: Final = Dashboard(
    "links",
    "Headrace / Links",
    "Copies of streams of other clusters: whether they are caught up, how far they are behind, how fast they copy.",
    "headrace_ready",
    [
        (
            "State",
            [
                stat("Failed", "Links that have stopped until somebody changes something.", "short",
                     none_is_zero(f"count({total('headrace_link_state', 'link', more=_FAILED, how='max')} == 1)"),
                     steps=ANY_IS_WORSE, width=6),
                stat("Furthest behind", "Of all links.", "s",
                     none_is_zero(f"max(headrace_link_lag_seconds{{{{S}}{_LINK}}})"),
                     steps=((60, BAD), (300, WORSE)), width=6),
                stat("Blocked partitions", "Partitions that cannot be copied at present.", "short",
                     none_is_zero(total("headrace_link_blocked_partitions", more=_LINK)), steps=ANY_IS_BAD, width=6),
                stat("Bytes in a second", "Copied by all links.", "Bps",
                     none_is_zero(rate("headrace_link_bytes_total", more=_LINK)), steps=(), width=6),
                graph("State", "Nodes on which a link is in a state.", "short",
                      (total("headrace_link_state", "link", "state", more=_LINK), "{{link}} {{state}}"), width=24),
            ],
        ),
        (
            "Behind",
            [
                graph("Lag in seconds", "The age of the oldest record at the source that is not copied yet. An alert "
                      "fires above 5 minutes.", "s",
                      (total("headrace_link_lag_seconds", "link", more=_LINK, how="max"), "{{link}}"),
                      steps=((300, WORSE),)),
                graph("Lag in records", "What is still to be copied.", "short",
                      (total("headrace_link_lag_records", "link", more=_LINK), "{{link}}")),
                graph("Lag in bytes", "The same in bytes, estimated.", "bytes",
                      (total("headrace_link_lag_bytes", "link", more=_LINK), "{{link}}")),
            ],
        ),
        (
            "Copying",
            [
                graph("Bytes", "Copied.", "Bps", (rate("headrace_link_bytes_total", "link", more=_LINK), "{{link}}"),
                      stacked=True),
                graph("Records", "Copied.", "cps",
                      (rate("headrace_link_records_total", "link", more=_LINK), "{{link}}"), stacked=True),
                graph("Set aside", "Records that diverged from their topic's home.", "cps",
                      (rate("headrace_set_aside_records_total", "node"), "node {{node}}")),
                graph("Failures", "Links retry by themselves.", "cps",
                      (rate("headrace_link_failures_total", "link", more=_LINK), "{{link}}")),
            ],
        ),
    ],
    [Variable("link", 'label_values(headrace_link_state{namespace=~"$namespace",job=~"$job"}, link)')],
)  # fmt: skip

_JOB: Final = ',streamjob=~"$streamjob"'
JOBS: Final = Dashboard(
    "jobs",
    "Headrace / Spark jobs",
    "StreamJobs: how far behind they are, how fast they go, how long their batches take, how many executors they have.",
    "headrace_job_info",
    [
        (
            "State",
            [
                stat("Running", "Jobs whose queries run.", "short",
                     none_is_zero(total("headrace_job_state", more=f'{_JOB},state="Running"')), steps=(), width=6),
                stat("Failed", "Jobs of which a query has failed.", "short",
                     none_is_zero(total("headrace_job_state", more=f'{_JOB},state="Failed"')), steps=ANY_IS_WORSE,
                     width=6),
                stat("Furthest behind", "Of all jobs.", "s",
                     none_is_zero(f"max(headrace_job_lag_seconds{{{{S}}{_JOB}}})"), steps=((60, BAD), (600, WORSE)),
                     width=6),
                stat("Records in a second", "Done by all jobs.", "cps",
                     none_is_zero(rate("headrace_job_records_total", more=_JOB)), steps=(), width=6),
            ],
        ),
        (
            "Behind",
            [
                graph("Lag in seconds", "How long ago a job had processed everything that its inputs held. An alert "
                      "fires above 10 minutes.", "s",
                      (total("headrace_job_lag_seconds", "streamjob", more=_JOB, how="max"), "{{streamjob}}"),
                      width=12, steps=((600, WORSE),)),
                graph("Lag in records", "Records that a job has still to process.", "short",
                      (total("headrace_job_lag_records", "streamjob", more=_JOB), "{{streamjob}}"), width=12),
            ],
        ),
        (
            "Work",
            [
                graph("Records", "Done.", "cps",
                      (rate("headrace_job_records_total", "streamjob", more=_JOB), "{{streamjob}}"), stacked=True),
                graph("Batches", "With records.", "cps",
                      (rate("headrace_job_batches_total", "streamjob", more=_JOB), "{{streamjob}}")),
                graph("Duration of batches (p99)", "Of batches with records.", "s",
                      (quantile(0.99, "headrace_job_batch_seconds", "streamjob", more=_JOB), "{{streamjob}}")),
                graph("Queries", "That run.", "short",
                      (total("headrace_job_queries", "streamjob", more=_JOB), "{{streamjob}}")),
                graph("Executors", "Executors that run, and those that autoscaling asks for.", "short",
                      (total("headrace_job_executors", "streamjob", more=_JOB), "{{streamjob}}"),
                      (total("headrace_job_wanted_executors", "streamjob", more=_JOB), "{{streamjob}} wanted")),
                graph("Since the last batch", "Time since the last batch with records.", "s",
                      (f"time() - max by (streamjob) (headrace_job_last_batch_time_seconds{{{{S}}{_JOB}}})",
                       "{{streamjob}}")),
                graph("Versions", "Drivers by the version that they run.", "short",
                      (total("headrace_job_info", "version", more=_JOB), "{{version}}"), stacked=True),
                graph("Uptime", "Since the driver started.", "s",
                      (f"time() - max by (streamjob) (headrace_job_start_time_seconds{{{{S}}{_JOB}}})",
                       "{{streamjob}}")),
            ],
        ),
    ],
    [Variable("streamjob", 'label_values(headrace_job_info{namespace=~"$namespace",job=~"$job"}, streamjob)')],
)  # fmt: skip

OPERATOR: Final = Dashboard(
    "operator",
    "Headrace / Operator",
    "What the Kubernetes operator manages, how long it takes, and what fails.",
    "headrace_operator_queue_resources",
    [
        (
            "Resources",
            [
                graph("Not as asked for", "By kind and condition; a condition that is unknown counts too.", "short",
                      (total("headrace_operator_objects", "kind", "condition", more=',status!="True"') + " > 0",
                       "{{kind}} {{condition}}")),
                graph("Resources", "Resources that the operator manages.", "short",
                      (total("headrace_operator_resources", "kind"), "{{kind}}"), stacked=True),
                graph("Queue", "Resources that wait for a reconcile or are being reconciled.", "short",
                      (total("headrace_operator_queue_resources"), "resources")),
            ],
        ),
        (
            "Reconciles",
            [
                graph("Reconciles", "By kind and outcome.", "cps",
                      (rate("headrace_operator_reconcile_duration_seconds_count", "kind", "outcome"),
                       "{{kind}} {{outcome}}")),
                graph("Duration (p99)", "By kind.", "s",
                      (quantile(0.99, "headrace_operator_reconcile_duration_seconds", "kind"), "{{kind}}")),
                graph("Errors", "By kind and class of the error; failed reconciles are retried.", "cps",
                      (rate("headrace_operator_reconcile_errors_total", "kind", "error"), "{{kind}} {{error}}")),
                graph("Calls", "Writes to the API server, including statuses, and calls to storage nodes.", "cps",
                      (rate("headrace_operator_writes_total"), "writes"),
                      (rate("headrace_operator_status_writes_total"), "statuses"),
                      (rate("headrace_operator_admin_calls_total"), "calls to nodes")),
                graph("Missed changes", "Changes that a sweep found and no watch had reported.", "cps",
                      (rate("headrace_operator_missed_changes_total"), "changes")),
                graph("Process", "Processor of the operator, in cores.", "short",
                      (rate("process_cpu_seconds_total"), "cores")),
                graph("Memory of the process", "Resident.", "bytes",
                      (total("process_resident_memory_bytes"), "resident")),
            ],
        ),
    ],
)  # fmt: skip

DASHBOARDS: Final = (CLUSTER, NODE, STREAMS, LINKS, JOBS, OPERATOR)


def main() -> None:
    """Write all dashboards."""
    FOLDER.mkdir(exist_ok=True)
    for each in DASHBOARDS:
        (FOLDER / f"{each.name}.json").write_text(each.json())


if __name__ == "__main__":
    main()
