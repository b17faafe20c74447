"""Homes of topics whose newest records an unclean recovery may have lost (invariant 15; docs/links.md).

Copies in other clusters may hold records that the home in this cluster has lost, while the home continues with other
records at the same offsets. So the history forks, and this cluster gives the topic's home to itself again. A cluster
that has the lost records then finds that they belong to the previous home, and quarantines them.

This concerns partitions that ended in the container when it was recovered. Partitionlets opened since have lost
nothing, and every partition is rolled for its new home, so the step may be repeated each time that a node begins to
lead the container. A partition that is not settled for its topic's home yet has no records of that home to lose.
"""

from functools import partial
from typing import Final

import structlog

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Epoch, Home, PartitionletId
from headrace.catalog.catalog import Catalog
from headrace.catalog.homes import HomeChange, SetHome
from headrace.catalog.reader import Reader
from headrace.catalog.rows import TopicRow
from headrace.container.leader import Leader
from headrace.partitions.home_check import home_of, is_settled_for

log = structlog.get_logger()

AT_ONCE: Final = 500
"""Number of open partitionlets that are read from the catalog at a time."""

Ended = tuple[TopicRow, Home | None]
"""A topic with a partition that ended in the container, and the home that the partition is settled for."""


async def retake_homes(container: Leader, *, catalog: Catalog, own_cluster: str) -> None:
    """Renew the homes of the topics at home here that may have lost records in a recovered container, which this node
    leads.

    Raises HeadraceError if some homes have not been renewed yet.
    """
    after = PartitionletId(0)
    retaken = 0
    while True:
        page = await catalog.query(
            partial(_page, container=container.id, before=container.recovered_epoch, after=after)
        )
        if page is None:
            break
        after, ended = page
        changes = {
            row.topic_id: HomeChange(row.topic_id, *home.given_to(home.cluster))
            for row, settled in ended
            if (home := home_of(row, own_cluster)).cluster == own_cluster and is_settled_for(home, settled)
        }
        if changes:
            codes = await catalog.submit(SetHome(items=list(changes.values())))
            refused = [code for code in codes if code not in (Code.NONE, Code.UNKNOWN_TOPIC_ID)]
            if refused:
                raise KafkaError(refused[0], "homes to be renewed have changed meanwhile")
            retaken += len(changes)
    if retaken:
        log.warning("homes were renewed, as some of their records may be lost", container=container.id, topics=retaken)


def _page(
    reader: Reader, *, container: ContainerId, before: Epoch, after: PartitionletId
) -> tuple[PartitionletId, list[Ended]] | None:
    """[blocking] The last partitionlet id and the owners of the next page of a container's open partitionlets that were
    opened before the epoch `before`; None if there are no more."""
    rows = reader.chains.open_in(container, before=before, after=after, limit=AT_ONCE)
    if not rows:
        return None
    owners = reader.chains.owners([row.id for row in rows])
    topics = reader.topics.by_ids({owner.topic_id for owner in owners.values()})
    settled = reader.homes.settled({row.number for row in topics.values()})
    return rows[-1].id, [
        (topics[owner.topic_id], settled.get((owner.topic, owner.partition)))
        for owner in owners.values()
        if owner.topic_id in topics
    ]
