"""Groups as stored in the catalog."""

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.catalog.groups import DeleteGroups
from kit.catalog import Tables
from kit.catalog_commands import commit, create, put_group


def test_a_generation_never_falls(tables: Tables) -> None:
    put_group(tables, generation=4, members=["m"])
    with pytest.raises(KafkaError) as caught:
        put_group(tables, generation=3, members=["old"])
    assert caught.value.code is Code.ILLEGAL_GENERATION
    group = tables.reader.groups.named("g")
    assert group is not None
    assert (group.generation, group.member_ids, group.members) == (4, ("m",), b"opaque")


def test_only_empty_groups_are_deleted(tables: Tables) -> None:
    topic_id = create(tables, "t")
    put_group(tables, generation=1, members=["m"])
    commit(tables, topic_id, generation=1)
    assert tables.apply(DeleteGroups(["g", "nobody"])) == [Code.NON_EMPTY_GROUP, Code.GROUP_ID_NOT_FOUND]
    put_group(tables, generation=1, members=[])
    assert tables.apply(DeleteGroups(["g"])) == [Code.NONE]
    assert tables.reader.groups.committed_offsets("g") == []
    assert tables.reader.groups.page() == []
