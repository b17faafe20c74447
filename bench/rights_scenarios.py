"""The cost of rights in addition to TLS: clients authenticate by certificates, and 1,000 ACLs say who may do what.

Both servers get the same ACLs by the same requests: Kafka's authorizer keeps them as such, Headrace as as many access
expressions. Three are those of the user that is measured, the others those of other users on other topics. Goals are
those of the same rows without TLS.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from bench import java_tools, wire
from bench.certificates import USER
from bench.cluster_scenarios import NODES, PARTITIONS
from bench.scenarios import Figures, Row, Scenario, Sizes, client, size_label, with_cpu
from bench.servers import Server, cpu_seconds
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

ACLS = 1_000
AT_ONCE = 500
"""ACLs in a request."""
TOPIC = "measured"
ANSWER_S = 60.0


def _acl(kind: ResourceType, name: str, user: str, operation: AclOperation) -> AclBinding:
    pattern = ResourcePatternType.LITERAL
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)


def _acls() -> Iterator[AclBinding]:
    """Yield the user's own ACLs, then as many of others as are wanted: two for each topic."""
    yield _acl(ResourceType.TOPIC, TOPIC, USER, AclOperation.WRITE)
    yield _acl(ResourceType.TOPIC, TOPIC, USER, AclOperation.READ)
    yield _acl(ResourceType.GROUP, "*", USER, AclOperation.READ)
    for number in itertools.count():
        for operation in (AclOperation.WRITE, AclOperation.READ):
            yield _acl(ResourceType.TOPIC, f"other-{number:04}", f"user-{number:04}", operation)


def restrict(server: Server, *, partitions: int = 1) -> None:
    """Create the topics and the ACLs, and return when the user may write. Raises KafkaException, TimeoutError."""
    acls = list(itertools.islice(_acls(), ACLS))
    others = sorted({each.name for each in acls if each.restype == ResourceType.TOPIC} - {TOPIC})
    with wire.Client(server.bootstrap) as plain:
        plain.create_topics([TOPIC], partitions=partitions)
        plain.create_topics(others)
    server.enforce_rights()
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    for at in range(0, ACLS, AT_ONCE):
        for created in admin.create_acls(acls[at : at + AT_ONCE], request_timeout=ANSWER_S).values():
            created.result(ANSWER_S)
    wire.wait_for_ack(server.tls_bootstrap, topic=TOPIC, timeout_s=ANSWER_S, tls=server.certificates.user_context())


def _java(size: int, *, nodes: int) -> Callable[[Server, Sizes], Figures]:
    def measure(server: Server, sizes: Sizes) -> Figures:
        records, warm_up = sizes.records(size, nodes=nodes)
        restrict(server, partitions=1 if nodes == 1 else PARTITIONS)
        to = server.tls_bootstrap
        common: dict[str, Any] = {
            "topic": TOPIC,
            "limit_s": sizes.limit_s,
            "properties": server.certificates.user_properties,
        }
        return with_cpu(
            server,
            records=records + warm_up,
            produce=lambda: java_tools.produce(to, records=records, size=size, warm_up=warm_up, **common),
            consume=lambda: java_tools.consume(to, records=records + warm_up, **common),
        )

    return measure


def _librdkafka(size: int) -> Callable[[Server, Sizes], Figures]:
    def measure(server: Server, sizes: Sizes) -> Figures:
        records, warm_up = sizes.records(size)
        restrict(server)
        common: dict[str, Any] = {
            "bootstrap": server.bootstrap,
            "tls_bootstrap": server.tls_bootstrap,
            "certificates": server.certificates.folder,
            "topic": TOPIC,
            "limit_s": sizes.limit_s,
        }
        produced = {"records": records, "size": size, "warmup": warm_up, "partitions": 0}
        return with_cpu(
            server,
            records=records + warm_up,
            produce=lambda: client("librdkafka_produce", **produced, **common),
            consume=lambda: client("librdkafka_consume", records=records + warm_up, **common),
        )

    return measure


def _waiters(server: Server, sizes: Sizes) -> Figures:
    restrict(server)
    seconds = sizes.waiting_s
    warm_up = min(5.0, seconds)
    before = cpu_seconds(server.pids)
    found = client(
        "waiters",
        bootstrap=server.tls_bootstrap,
        certificates=server.certificates.folder,
        topic=TOPIC,
        seconds=seconds,
        warm_up_s=warm_up,
        limit_s=seconds + warm_up,
    )
    used = cpu_seconds(server.pids) - before
    # The warm-up has its requests too, at the same rate.
    found["cpu_us"] = used * 1e6 / (found["per_s"] * (seconds + warm_up))
    return {"rate": found, "p50": found, "p99": found, "cpu": found}


def _throughput(name: str, who: str, size: int, measure: Callable[[Server, Sizes], Figures], *, nodes: int) -> Scenario:
    label = size_label(size)
    where = "1 node, 1 topic" if nodes == 1 else f"{nodes} nodes, {PARTITIONS} partitions"
    produce, consume = (1.0, 1.2 if who == "librdkafka" else 1.0) if nodes == 1 else (4.0, 1.3)
    return Scenario(
        f"{'cluster-' if nodes > 1 else ''}rights-{name}-{size}",
        (
            Row("produce", f"{who} produce, {where}, {label}, acks=all", "per_s", "records/s", reach=produce),
            Row("produce_cpu", "the same, per second of the server's CPU", "per_cpu_s", "records"),
            Row("consume", f"{who} consume, {where}, {label}", "per_s", "records/s", reach=consume),
            Row("consume_cpu", "the same, per second of the server's CPU", "per_cpu_s", "records"),
        ),
        measure,
        nodes=nodes,
        tls=True,
        rights=True,
    )


RIGHTS_SCENARIOS: tuple[Scenario, ...] = (
    *(_throughput("java", "Java", size, _java(size, nodes=1), nodes=1) for size in (100, 1024)),
    *(_throughput("librdkafka", "librdkafka", size, _librdkafka(size), nodes=1) for size in (100, 1024)),
    Scenario(
        "rights-waiters",
        (
            Row("rate", "32 waiting producers (bare sockets), 100 B", "per_s", "requests/s", reach=1.0),
            Row("p50", "32 waiting producers, p50", "p50_ms", "ms", more_is_better=False),
            Row("p99", "32 waiting producers, p99", "p99_ms", "ms", more_is_better=False, reach=1.0),
            Row("cpu", "32 waiting producers, the server's CPU per request", "cpu_us", "us", more_is_better=False),
        ),
        _waiters,
        tls=True,
        rights=True,
    ),
    *(_throughput("java", "Java", size, _java(size, nodes=NODES), nodes=NODES) for size in (100, 1024)),
)
