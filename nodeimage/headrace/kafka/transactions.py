"""The transaction APIs. Transactions are not supported: beginning one is refused, and a listing finds none.

A transactional producer gets no further than FindCoordinator (`groups`), so no transaction ever begins. The APIs are
answered for tools and clients that derive a cluster's version from the APIs that exist. DescribeProducers lists
idempotent producers.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from headrace.base.errors import Code, KafkaError
from headrace.kafka.api import Api
from headrace.kafka.authorization import Authorization
from headrace.kafka.connection import Connection
from headrace.partitions.lookups import leaders, refusal, yield_to_loop
from headrace.partitions.partition import Partition
from headrace.partitions.partitions import Partitions
from headrace.partitions.topics import Topics
from headrace.security.access_rules import Kind
from headrace.security.kafka_acls import AclOperation
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.primitives import bounded

_REFUSED: Final = int(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


class TransactionApis:
    """Answers the transaction APIs and DescribeProducers."""

    def __init__(self, *, topics: Topics, partitions: Partitions, authorization: Authorization) -> None:
        self._authorization = authorization
        self._topics = topics
        self._partitions = partitions

    @property
    def apis(self) -> Sequence[Api]:
        """The APIs that this module answers."""
        # The APIs that a transaction needs are answered with a refusal: franz-go, and software built on it, derives a
        # cluster's version from the APIs that exist.
        return (
            Api(ApiKey.ADD_PARTITIONS_TO_TXN, Versions(0, 3), add_partitions_to_txn),
            Api(ApiKey.ADD_OFFSETS_TO_TXN, Versions(0, 3), add_offsets_to_txn),
            Api(ApiKey.END_TXN, Versions(0, 3), end_txn),
            Api(ApiKey.TXN_OFFSET_COMMIT, Versions(0, 3), txn_offset_commit),
            Api(ApiKey.LIST_TRANSACTIONS, Versions(0, 1), list_transactions),
            Api(ApiKey.DESCRIBE_TRANSACTIONS, Versions(0, 0), self.describe_transactions),
            Api(ApiKey.DESCRIBE_PRODUCERS, Versions(0, 0), self.describe_producers, has_long_answers=True),
        )

    async def describe_producers(self, request: Any, session: Connection) -> Mapping[str, object]:
        """DescribeProducers: the idempotent producers remembered by the partitions that this node leads."""
        bounded(sum(len(topic.partition_indexes) for topic in request.topics), "partitions")
        wanted = [(topic.name, partition) for topic in request.topics for partition in topic.partition_indexes]
        refused = await self._authorization.refused_topics(
            session, AclOperation.READ, (name for name, _ in wanted), api="DescribeProducers"
        )
        found = await leaders(wanted, session, topics=self._topics, partitions=self._partitions, refused=refused)
        answers: list[dict[str, object]] = []
        answered: set[tuple[bytes, int]] = set()
        for (name, index), leader in zip(wanted, found, strict=True):
            answer: dict[str, object] = {"partition_index": index, "error_code": 0, "error_message": None}
            if isinstance(leader, KafkaError):
                answer |= refusal(leader)
            elif (leader.topic_id, index) in answered:  # each answer may have 100,000 producers
                answer |= refusal(KafkaError(Code.INVALID_REQUEST, f"{name} partition {index} is named more than once"))
            else:
                answered.add((leader.topic_id, index))
                answer["active_producers"] = list(_producers(leader))
            answers.append(answer)
            await yield_to_loop(len(answers))
        rest = iter(answers)
        return {
            "topics": [
                {"name": topic.name, "partitions": [next(rest) for _ in topic.partition_indexes]}
                for topic in request.topics
            ]
        }

    async def describe_transactions(self, request: Any, session: Connection) -> Mapping[str, object]:
        """DescribeTransactions."""
        return {
            "transaction_states": [
                {"error_code": int(self._not_found(each, session)), "transactional_id": each}
                for each in request.transactional_ids
            ]
        }

    def _not_found(self, transactional_id: str, session: Connection) -> Code:
        describe = AclOperation.DESCRIBE, Kind.TRANSACTIONAL_ID, transactional_id
        if self._authorization.may(session, *describe, api="DescribeTransactions"):
            return Code.TRANSACTIONAL_ID_NOT_FOUND
        return Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def add_partitions_to_txn(request: Any, session: Connection) -> Mapping[str, object]:
    """AddPartitionsToTxn."""
    bounded(sum(len(topic.partitions) for topic in request.v3_and_below_topics), "partitions")
    return {
        "results_by_topic_v3_and_below": [
            {
                "name": topic.name,
                "results_by_partition": [
                    {"partition_index": partition, "partition_error_code": _REFUSED} for partition in topic.partitions
                ],
            }
            for topic in request.v3_and_below_topics
        ]
    }


async def add_offsets_to_txn(request: Any, session: Connection) -> Mapping[str, object]:
    """AddOffsetsToTxn."""
    return {"error_code": _REFUSED}


async def end_txn(request: Any, session: Connection) -> Mapping[str, object]:
    """EndTxn."""
    return {"error_code": _REFUSED}


async def txn_offset_commit(request: Any, session: Connection) -> Mapping[str, object]:
    """TxnOffsetCommit."""
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": each.partition_index, "error_code": _REFUSED} for each in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


async def list_transactions(request: Any, session: Connection) -> Mapping[str, object]:
    """ListTransactions."""
    return {"error_code": 0, "unknown_state_filters": (), "transaction_states": ()}


def _producers(partition: Partition) -> Iterator[dict[str, object]]:
    for producer_id, producer in partition.producers.items():
        if producer_id >= 0 and producer.batches:  # negative ids are tokens, which Kafka's clients do not know
            last = producer.batches[-1]
            yield {
                "producer_id": producer_id,
                "producer_epoch": producer.epoch,
                "last_sequence": last.last_sequence,
                "last_timestamp": last.timestamp,
                "coordinator_epoch": -1,
                "current_txn_start_offset": -1,
            }
