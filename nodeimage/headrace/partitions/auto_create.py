"""Auto-creation of topics on first use, in streams whose policy allows it.

Responsible for the one command that creates all topics of a request: it places their partitions, and reports why a
topic is not created. Keeps no state: the caller looks up the created topics (topics.py).
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
from headrace.partitions.refusals import client_error


async def make_topics(
    names: Sequence[TopicName],
    *,
    catalog: Catalog,
    placement: Placement,
    may_create: Callable[[str], bool] | None = None,
) -> dict[str, KafkaError | None]:
    """Create topics; returns by full name why each was not created, None for one that was created or existed already,
    which may have been deleted again since.

    `may_create`: whether the client may create the topic of a full name; where it may not, TOPIC_AUTHORIZATION_FAILED,
    as in Kafka. The result leaves out topics whose stream does not exist or does not auto-create, and those that the
    catalog refused permanently.
    """
    paths = sorted({name.stream for name in names})
    if not names:
        return {}
    streams = await catalog.query(lambda reader: {path: reader.streams.at(path) for path in paths})
    items = []
    errors: dict[str, KafkaError | None] = {}
    for name in names:
        stream = streams[name.stream]
        if stream is None or not stream.policy.auto_create:
            continue
        if may_create is not None and not may_create(name.full):
            errors[name.full] = KafkaError(
                Code.TOPIC_AUTHORIZATION_FAILED, f"topic {name.full} does not exist, and this user may not create it"
            )
            continue
        count = stream.policy.default_partitions
        try:
            places = placement.place(count, stream.policy.volume)
        except KafkaError as error:
            errors[name.full] = error
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
        return errors
    try:
        outcome = await catalog.submit(CreateTopics(items=items, now=Millis(int(time.time() * 1000))))
    except HeadraceError as error:
        return errors | {f"{item.stream}:{item.name}": client_error(error) for item in items}
    assert isinstance(outcome, list)
    for item, result in zip(items, outcome, strict=True):
        if result.topic is not None:
            errors[f"{item.stream}:{item.name}"] = None
        elif result.code is Code.LEADER_NOT_AVAILABLE:
            errors[f"{item.stream}:{item.name}"] = KafkaError(result.code, result.message)
    return errors
