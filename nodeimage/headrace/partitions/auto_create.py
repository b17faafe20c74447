"""Topics that are made on first use, in streams whose policy allows it.

Responsible for the command, one for however many topics: where their partitions lie, and why there is none. Holds
nothing: who asks looks up what was made (topics.py).
"""

import time
import uuid
from collections.abc import Callable, Sequence

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import Millis
from headrace.catalog.catalog import Catalog
from headrace.catalog.names import TopicName
from headrace.catalog.topics import CreateTopics, NewTopic
from headrace.partitions.placement import Placement
from headrace.partitions.refusals import told


async def make_topics(
    names: Sequence[TopicName],
    *,
    catalog: Catalog,
    placement: Placement,
    may_create: Callable[[str], bool] | None = None,
) -> dict[str, KafkaError | None]:
    """By full name, why each was not made; None for one that was made, or was there. By now it may be deleted again.

    `may_create`: whether the client may, by the full name; TOPIC_AUTHORIZATION_FAILED where it may not, as at Kafka.
    Left out are those whose stream is not there or makes none, and those that the catalog refused for good.
    """
    paths = sorted({name.stream for name in names})
    if not names:
        return {}
    streams = await catalog.query(lambda reader: {path: reader.streams.at(path) for path in paths})
    items = []
    made: dict[str, KafkaError | None] = {}
    for name in names:
        stream = streams[name.stream]
        if stream is None or not stream.policy.auto_create:
            continue
        if may_create is not None and not may_create(name.full):
            made[name.full] = KafkaError(
                Code.TOPIC_AUTHORIZATION_FAILED, f"topic {name.full} is not there, and this user may not make it"
            )
            continue
        count = stream.policy.default_partitions
        try:
            places = placement.place(count, stream.policy.volume)
        except KafkaError as error:
            made[name.full] = error
            continue
        items.append(
            NewTopic(
                stream=name.stream,
                name=name.topic,
                topic_id=uuid.uuid4().bytes,
                partitions=count,
                configs={},
                container_ids=[container for container, _ in places],
                container_epochs=[epoch for _, epoch in places],
            )
        )
    if not items:
        return made
    try:
        outcome = await catalog.submit(CreateTopics(items=items, now=Millis(int(time.time() * 1000))))
    except HeadraceError as error:
        return made | {f"{item.stream}:{item.name}": told(error) for item in items}
    assert isinstance(outcome, list)
    for item, result in zip(items, outcome, strict=True):
        if result.topic is not None:
            made[f"{item.stream}:{item.name}"] = None
        elif result.code is Code.LEADER_NOT_AVAILABLE:
            made[f"{item.stream}:{item.name}"] = KafkaError(result.code, result.message)
    return made
