"""Homes of topics whose newest records an unclean recovery may have lost (invariant 15, DESIGN section 9).

Copies in other clusters may hold what the home here has lost, and it goes on with other records at the same offsets.
So the history forks: the cluster gives the home to itself. Who has records that are lost here finds that they are of
the home before, and sets them aside.

It concerns partitions that ended in the container when it was recovered. What was opened since has lost nothing, and
all of them are rolled for their new home: so this may be repeated, each time that somebody begins to lead the
container. One that is not settled for its topic's home yet has no records of it that could be lost.
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

Ended = tuple[TopicRow, Home | None]
"""A topic of which a partition ended in a container, and the home that the partition is settled for."""


async def retake_homes(container: Leader, *, catalog: Catalog, own_cluster: str) -> None:
    """Take the homes anew of topics at home here that a recovered container, led here, may have lost records of.

    Raises HeadraceError: some are not taken yet.
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
                raise KafkaError(refused[0], "homes that were to be taken anew have changed meanwhile")
            retaken += len(changes)
    if retaken:
        log.warning("homes were taken anew, records of theirs may be lost", container=container.id, topics=retaken)


def _page(
    reader: Reader, *, container: ContainerId, before: Epoch, after: PartitionletId
) -> tuple[PartitionletId, list[Ended]] | None:
    """[blocking] The next open partitionlets of a container that were opened `before` an epoch; None: no more."""
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
