import pytest

from headrace.base.closing import Closing


class Kept(Closing):
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_it_is_closed_as_the_block_ends_however_that_ends() -> None:
    with Kept() as kept:
        assert kept.closed == 0
    assert kept.closed == 1
    with pytest.raises(ZeroDivisionError), kept:
        raise ZeroDivisionError
    assert kept.closed == 2
