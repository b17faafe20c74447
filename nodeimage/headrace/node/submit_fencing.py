"""Fencing of submitted commands: an attempt that its node has given up cannot take effect late.

A call that timed out, or whose target no longer leads, may still be under way in a connection that is cut off for now.
When the network heals it arrives behind commands that were submitted later and acknowledged: a committed offset would
go back, a deleted topic would exist again. So each attempt names the epoch of the leader that it is for and has a
number, which rises with each attempt of its process; it also carries a number below which the leader refuses attempts:
one more than the highest that was given up. An older attempt that is still awaited may be refused with them. The leader
also refuses attempts for another epoch. (Kafka's controller refuses by broker epoch, for the same reason: KIP-380.)

This covers the commands of one process within one epoch. It does not cover a client that turned to another node
meanwhile: its first request was not answered, and may still take effect.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Epoch
from headrace.peer.messages import Submit


class SubmitAttempts:
    """Numbers the attempts of this process."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._last = 0
        self._given_up = 0

    @contextmanager
    def one(self, epoch: Epoch) -> Iterator[Submit]:
        """An attempt to submit to the leader of `epoch`. It counts as given up if the context ends by an exception."""
        self._last += 1
        number = self._last
        try:
            yield Submit(epoch, self._run, number, self._given_up + 1)
        except BaseException:
            self._given_up = max(self._given_up, number)
            raise


class SubmitFence:
    """Refuses late attempts on the node that leads the catalog."""

    def __init__(self) -> None:
        self._epoch = Epoch(0)
        self._least: dict[str, int] = {}

    def admit(self, asked: Submit, *, led: Epoch) -> None:
        """Raise KafkaError NOT_CONTROLLER for a late attempt. Nothing may be awaited between this call and the
        command's taking effect. `led`: the epoch in which this node leads."""
        if not asked.epoch:  # a node of the previous version: not fenced
            return
        if asked.epoch != led:
            raise KafkaError(
                Code.NOT_CONTROLLER,
                f"this is for the catalog's primary of epoch {asked.epoch}, but this node has {led}",
            )
        if led != self._epoch:
            self._epoch = led
            self._least.clear()
        least = self._least[asked.run] = max(asked.least, self._least.get(asked.run, 0))
        if asked.number < least:
            raise KafkaError(
                Code.NOT_CONTROLLER, "this attempt is late: its sender has since given up this or a later one"
            )
