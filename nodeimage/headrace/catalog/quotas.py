"""Quotas of users, client ids and addresses (Kafka's client quotas, KIP-546)."""

from typing import ClassVar

from headrace.base.errors import Code
from headrace.base.levels import Level
from headrace.catalog.command import CatalogCommand, Item
from headrace.tables.row_checksums import Tables


class Quota(Item, frozen=True):
    """One limit. `entity`: names by type (`user`, `client-id`, `ip`) as canonical JSON, with null for the default of a
    type. `value`: None removes the limit."""

    entity: str
    key: str
    value: float | None


class AlterQuotas(CatalogCommand[list[Code]], frozen=True):
    """Set and remove limits. One code per item; removing a limit that does not exist is a success."""

    items: list[Quota]

    since: ClassVar[Level] = Level.SECURED
    changes_topics: ClassVar[bool] = False

    def apply(self, connection: Tables) -> list[Code]:
        for item in self.items:
            if item.value is None:
                connection.delete("quotas", "entity = ?1 AND key = ?2", item.entity, item.key)
            else:
                connection.insert("quotas", [(item.entity, item.key, repr(float(item.value)))], upsert=True)
        return [Code.NONE] * len(self.items)
