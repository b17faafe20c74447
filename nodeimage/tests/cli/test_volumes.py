import pytest

from headrace.base.errors import HeadraceError
from headrace.cli.units import BadQuantity
from headrace.cli.volumes import volume_fields


def test_what_is_not_said_is_not_sent() -> None:
    assert volume_fields(None, None, None, None, None, None, None) == {}
    assert volume_fields(3, 2, "required", None, None, None, "memory") == {
        "replicas": 3,
        "min_in_sync": 2,
        "spread": "required",
        "durability": "memory",
    }


def test_zones_labels_and_sizes_are_read_as_people_write_them() -> None:
    fields = volume_fields(None, None, None, "a, b", ["disk=ssd", "rack=7"], "500GiB", None)
    assert fields == {"zones": ["a", "b"], "labels": {"disk": "ssd", "rack": "7"}, "size_limit": 500 << 30}


def test_a_restriction_can_be_taken_back() -> None:
    fields = volume_fields(None, None, None, "any", ["any"], "unlimited", None)
    assert fields == {"zones": [], "labels": {}, "size_limit": 0}


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(HeadraceError, match="NAME=VALUE"):
        volume_fields(None, None, None, None, ["ssd"], None, None)
    with pytest.raises(BadQuantity):
        volume_fields(None, None, None, None, None, "much", None)
