"""Which writes have to wait for room before they are forwarded to a topic's home."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.ids import Home
from headrace.partitions.forwarding import must_wait


@pytest.mark.parametrize(
    ("full", "home", "accepts", "waits"),
    [
        (True, Home(1, "north"), True, True),
        (False, Home(1, "north"), True, False),
        (True, None, True, False),
        (True, Home(1, "north"), False, False),
    ],
)
def test_only_who_writes_to_a_copy_waits_and_only_while_there_is_no_room(
    full: bool, home: Home | None, accepts: bool, waits: bool
) -> None:
    forwards: Any = SimpleNamespace(full=full, accepts=lambda topic: accepts)
    topic: Any = SimpleNamespace(home=home)
    assert must_wait(forwards, topic) is waits
