"""Quotas as stored in the catalog."""

from headrace.base.errors import Code
from headrace.catalog.quotas import AlterQuotas, Quota
from headrace.catalog.rows import QuotaRow
from kit.catalog import Tables

ALICE, EVERYBODY = '{"user":"alice"}', '{"user":null}'


def test_limits_are_set_replaced_and_removed_one_by_one(tables: Tables) -> None:
    items = [Quota(ALICE, "producer_byte_rate", 0.1), Quota(ALICE, "consumer_byte_rate", 2e6)]
    assert tables.apply(AlterQuotas([*items, Quota(EVERYBODY, "request_percentage", 12.5)])) == [Code.NONE] * 3
    changes = [Quota(ALICE, "producer_byte_rate", 1e100), Quota(ALICE, "consumer_byte_rate", None)]
    for _ in range(2):
        assert tables.apply(AlterQuotas(changes)) == [Code.NONE] * 2
    assert tables.reader.users.quotas() == [
        QuotaRow(ALICE, "producer_byte_rate", 1e100),
        QuotaRow(EVERYBODY, "request_percentage", 12.5),
    ]
