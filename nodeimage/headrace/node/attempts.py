"""Attempts to have another node write a command, so that one that was given up does not land late.

A call whose time is up, or whose node leads no more, may lie in a connection that leads nowhere for now. When the way
is whole again it arrives, behind what was submitted later and acknowledged: a cursor would go back, a deleted topic
would be there again. So each attempt names the epoch of the leader that it is for, and has a number, which rises with
each of its process; and it says below which number one was given up. The leader refuses what is for another epoch, and
what is below that. (Kafka's controller refuses by broker epoch, for the same reason: KIP-380.)

In one epoch that holds for what one process submits. Where a client turned to another node meanwhile, what it was told
stands: its first request was not answered, and may still happen.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Epoch
from headrace.peer.messages import Submit


class Attempts:
    """Those that a process makes."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._last = 0
        self._given_up = 0

    @contextmanager
    def one(self, epoch: Epoch) -> Iterator[Submit]:
        """An attempt at the leader of that epoch. It is given up when the context ends by an exception."""
        self._last += 1
        number = self._last
        try:
            yield Submit(epoch, self._run, number, self._given_up + 1)
        except BaseException:
            self._given_up = max(self._given_up, number)
            raise


class Arrivals:
    """Those that reach a leader."""

    def __init__(self) -> None:
        self._epoch = Epoch(0)
        self._least: dict[str, int] = {}

    def admit(self, asked: Submit, *, led: Epoch) -> None:
        """To be called where it takes effect at once. `led`: this node's epoch. Raises KafkaError(NOT_CONTROLLER)."""
        if not asked.epoch:
            return
        if asked.epoch != led:
            raise KafkaError(
                Code.NOT_CONTROLLER, f"this is for the catalog's primary of epoch {asked.epoch}, and here is {led}"
            )
        if led != self._epoch:
            self._epoch = led
            self._least.clear()
        least = self._least[asked.run] = max(asked.least, self._least.get(asked.run, 0))
        if asked.number < least:
            raise KafkaError(Code.NOT_CONTROLLER, "this comes late: whoever sent it has given it up")
