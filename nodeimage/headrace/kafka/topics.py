"""DeleteTopics and DeleteRecords.

The items of a request become catalog commands of at most COMMAND_ITEMS items each. Only the decision is committed here
(invariant 12); disk space is freed later, by `storage`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import Offset
from headrace.catalog.catalog import Catalog
from headrace.catalog.chains import LogStart, SetLogStart
from headrace.catalog.names import shown
from headrace.catalog.rows import TopicRow
from headrace.catalog.topics import DeleteTopics, TopicOutcome
from headrace.kafka.api import Api
from headrace.kafka.authorization import Authorization
from headrace.kafka.connection import Connection
from headrace.kafka.throttle import Throttle
from headrace.partitions.lookups import (
    batched,
    leaders,
    look_up_all,
    now,
    refusal,
    submit_within,
    topic_rows,
    yield_to_loop,
)
from headrace.partitions.partition import Partition
from headrace.partitions.partitions import Partitions
from headrace.partitions.topics import Topics
from headrace.security.kafka_acls import AclOperation
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.generic_codec import field

STRICT_DELETIONS: Final = 5
"""The first version of DeleteTopics in which clients know THROTTLING_QUOTA_EXCEEDED."""
NO_ID: Final = bytes(16)


class TopicApis:
    """Answers DeleteTopics and DeleteRecords."""

    def __init__(
        self,
        *,
        topics: Topics,
        partitions: Partitions,
        catalog: Catalog,
        authorization: Authorization,
        throttle: Throttle,
    ) -> None:
        self._authorization = authorization
        self._topics = topics
        self._partitions = partitions
        self._catalog = catalog
        self._throttle = throttle

    @property
    def apis(self) -> Sequence[Api]:
        """The APIs that this module answers."""
        return (
            Api(ApiKey.DELETE_TOPICS, Versions(1, 6), self.delete_topics),
            Api(ApiKey.DELETE_RECORDS, Versions(0, 2), self.delete_records),
        )

    # --- DeleteTopics

    async def delete_topics(self, request: Any, session: Connection) -> Mapping[str, object]:
        """DeleteTopics: by name, or by id from version 6 on."""
        states = field(request, "topics", None)
        asked: list[tuple[str | None, bytes | None]] = (
            [(name, None) for name in request.topic_names]
            if states is None
            else [(state.name, state.topic_id.bytes if state.topic_id else None) for state in states]
        )
        found = await self._topics_to_delete(asked, session)
        times = Counter(row.topic_id for row in found if isinstance(row, TopicRow))
        for place, row in enumerate(found):
            if isinstance(row, TopicRow) and times[row.topic_id] > 1:
                name = asked[place][0] or shown(row.stream, row.name, session.default_stream)
                found[place] = KafkaError(Code.INVALID_REQUEST, f"{name} is named more than once in this request")
        counted = [(place, row.partitions) for place, row in enumerate(found) if isinstance(row, TopicRow)]
        over = self._throttle.charge_mutations(
            session, [count for _, count in counted], strict=request.__version__ >= STRICT_DELETIONS
        )
        for (place, _), error in zip(counted, over, strict=True):
            if error is not None:
                found[place] = error
        ids = [row.topic_id for row in found if isinstance(row, TopicRow)]
        outcomes: dict[bytes, TopicOutcome] = {}
        for some in batched(ids):
            command = DeleteTopics(topic_ids=list(some), now=now())
            try:
                done = await submit_within(self._catalog, command, timeout_ms=field(request, "timeout", 0))
                outcomes |= zip(some, done, strict=True)
            except HeadraceError as error:  # later commands would fail too, each after its timeout
                left = [each for each in ids if each not in outcomes]
                outcomes |= dict.fromkeys(left, TopicOutcome(Code(error.code), str(error)))
                break
        return {
            "responses": [
                self._deleted(session, name, topic_id, row, outcomes=outcomes)
                for (name, topic_id), row in zip(asked, found, strict=True)
            ]
        }

    async def _topics_to_delete(
        self, asked: Sequence[tuple[str | None, bytes | None]], session: Connection
    ) -> list[TopicRow | KafkaError]:
        names = [name for name, topic_id in asked if name is not None and topic_id is None]
        refused = await self._authorization.refused_topics(session, AclOperation.DELETE, names, api="DeleteTopics")
        by_name = iter(await topic_rows(self._catalog, names, default_stream=session.default_stream, refused=refused))
        ids = [topic_id for name, topic_id in asked if name is None and topic_id is not None]
        by_id = await look_up_all(self._catalog, ids, lambda reader: reader.topics.by_ids(ids))
        found: list[TopicRow | KafkaError] = []
        for name, topic_id in asked:
            if name is not None and topic_id is not None:
                found.append(KafkaError(Code.INVALID_REQUEST, "give a topic's name or its id, not both"))
            elif name is not None:
                found.append(next(by_name))
            elif topic_id is not None:
                found.append(self._by_id(topic_id, by_id.get(topic_id), session))
            else:
                found.append(KafkaError(Code.INVALID_REQUEST, "give a topic's name or its id"))
        return found

    def _by_id(self, topic_id: bytes, row: TopicRow | KafkaError | None, session: Connection) -> TopicRow | KafkaError:
        """The topic that a client names by its id, or the error if it may not delete the topic; a client that may not
        describe it learns nothing."""
        if row is None:
            return KafkaError(Code.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id.hex()}")
        if isinstance(row, KafkaError):
            return row
        delete = AclOperation.DELETE
        refused = self._authorization.refused_id(session, delete, topic_id, row.full_name, api="DeleteTopics")
        return refused or row

    def _deleted(
        self,
        session: Connection,
        name: str | None,
        topic_id: bytes | None,
        row: TopicRow | KafkaError,
        *,
        outcomes: Mapping[bytes, TopicOutcome],
    ) -> dict[str, object]:
        if isinstance(row, KafkaError):
            return {"name": name, "topic_id": topic_id or NO_ID, **refusal(row)}
        outcome = outcomes[row.topic_id]
        failed = outcome.code is not Code.NONE
        return {
            "name": name if name is not None else shown(row.stream, row.name, session.default_stream),
            "topic_id": row.topic_id,
            "error_code": int(outcome.code),
            "error_message": (outcome.message or outcome.code.name) if failed else None,
        }

    # --- DeleteRecords

    async def delete_records(self, request: Any, session: Connection) -> Mapping[str, object]:
        """DeleteRecords: first a committed command moves the log start, then bytes are freed (invariant 12)."""
        asked = [(topic.name, partition) for topic in request.topics for partition in topic.partitions]
        found = await leaders(
            [(name, partition.partition_index) for name, partition in asked],
            session,
            topics=self._topics,
            partitions=self._partitions,
            refused=await self._authorization.refused_topics(
                session, AclOperation.DELETE, (name for name, _ in asked), api="DeleteRecords"
            ),
        )
        items: list[LogStart] = []
        answers: list[dict[str, object]] = []
        moved: list[dict[str, object]] = []
        for index, ((_, partition), leader) in enumerate(zip(asked, found, strict=True)):
            answer: dict[str, object] = {"partition_index": partition.partition_index, "low_watermark": -1}
            answers.append(answer)
            if isinstance(leader, KafkaError):
                answer["error_code"] = int(leader.code)
            elif (target := _new_log_start(leader, partition.offset)) is None:
                answer["error_code"] = int(Code.OFFSET_OUT_OF_RANGE)
            else:
                items.append(LogStart(topic_id=leader.topic_id, partition=leader.index, offset=target))
                moved.append(answer)
            await yield_to_loop(index)
        if items:
            await self._move_log_starts(items, moved, timeout_ms=field(request, "timeout", 0))
        rest = iter(answers)
        return {
            "topics": [
                {"name": topic.name, "partitions": [next(rest) for _ in topic.partitions]} for topic in request.topics
            ]
        }

    async def _move_log_starts(
        self, items: list[LogStart], answers: Sequence[dict[str, object]], *, timeout_ms: int
    ) -> None:
        """Commit the new log starts, and add the outcome of each to `answers`."""
        done = 0
        for piece, piece_answers in zip(batched(items), batched(answers), strict=True):
            try:
                outcomes = await submit_within(self._catalog, SetLogStart(items=list(piece)), timeout_ms=timeout_ms)
            except HeadraceError as error:
                for answer in answers[done:]:
                    answer["error_code"] = int(error.code)
                return
            done += len(piece)
            for answer, outcome in zip(piece_answers, outcomes, strict=True):
                answer["error_code"] = int(outcome.code)
                answer["low_watermark"] = outcome.offset


def _new_log_start(leader: Partition, offset: int) -> Offset | None:
    """The log start to set, with -1 meaning the high watermark; None if the offset is out of range.

    The high watermark only rises, so an offset at or below it now is still so when the command is applied.
    """
    target = leader.high_watermark if offset == -1 else offset
    return Offset(target) if 0 <= target <= leader.high_watermark else None
