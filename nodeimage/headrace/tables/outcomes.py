"""Delivers the outcomes of commands, which are decided in the log's order, to the submitters that wait for them.

A submitter on this node gets the position of its command from the writer of the log (this node's container, or the
catalog's leader over the network), and the command is applied once this node's replica has committed it. Either may
happen first. So an outcome is kept from its decision until its submitter is gone, but only for commands whose bytes
equal those of a submit under way on this node: commands of other nodes cost one look-up in a dict.

A command that was sent more than once may be in the log more than once. Its outcome is that of the first copy:
later copies find the work done. Everything here belongs to the loop thread, unless marked otherwise.
"""

import asyncio

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import Position
from headrace.tables.schema import Command, Decided, Outcome


class CatalogFailed(HeadraceError):
    """The catalog is closed, or its file is damaged. Clients try again, at this node after its restart or at
    another."""

    code = Code.COORDINATOR_NOT_AVAILABLE


class NotCommitted(Exception):
    """An attempt to get a command into the log failed with `error`; the command may be in the log nevertheless."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class Submitted:
    """One submit under way: the copies of its command that were applied here, and the future that waits for one."""

    __slots__ = ("_copies", "_outcomes", "_waiter", "attempts", "command", "payload", "position")

    def __init__(self, command: Command, payload: bytes, outcomes: "Outcomes") -> None:
        self.command = command
        self.payload = payload
        self.attempts = 0
        """The number of attempts to get the command into the log."""
        self.position: Position | None = None
        """The position after the frame that the last attempt wrote, once it is committed."""
        self._outcomes = outcomes
        self._copies: list[tuple[Position, Decided]] = []
        self._waiter: asyncio.Future[Outcome] | None = None

    def attempt(self) -> asyncio.Future[Outcome]:
        """Begin another attempt; the future gets the outcome, or NotCommitted, or the error that refuses the command.

        Raises CatalogFailed if nothing is applied any more.
        """
        if self._outcomes.failure is not None:
            raise self._outcomes.failure
        self.attempts += 1
        self.position = None
        self._waiter = asyncio.get_running_loop().create_future()
        self._waiter.add_done_callback(_mark_seen)
        return self._waiter

    def appended(self, done: asyncio.Future[Position]) -> None:
        """The append to this node's log is done: the command is committed, or the append has failed."""
        if done.cancelled():
            self.fail(NotCommitted(CatalogFailed("the container went away before the command was committed")))
        elif (error := done.exception()) is not None:
            self.fail(NotCommitted(error))
        else:
            self.committed(done.result())

    def committed(self, position: Position) -> None:
        """The command is committed in the frame that ends at `position`."""
        self.position = position
        if position > self._outcomes.applied:
            return
        for at, decided in self._copies:
            if at == position:
                self._resolve(decided)
                return
        self.skipped()

    def applied(self, position: Position, decided: Decided) -> None:
        """A command with the same bytes was applied here."""
        self._copies.append((position, decided))
        if position == self.position:
            self._resolve(decided)

    def skipped(self) -> None:
        """The tables are past the command without having applied it: they were replaced by another replica's."""
        lost = KafkaError(Code.COORDINATOR_NOT_AVAILABLE, "the catalog was replaced by a snapshot meanwhile")
        self.fail(NotCommitted(lost))

    def fail(self, error: BaseException) -> None:
        """End the attempt with `error`."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def _resolve(self, decided: Decided) -> None:
        if self.attempts > 1:
            decided = self._copies[0][1]
        if isinstance(decided, KafkaError):
            self.fail(decided)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(decided)


class Outcomes:
    """The submits under way of one catalog."""

    def __init__(self, applied: Position) -> None:
        self.applied = applied
        """The position below which everything is applied, and outcomes are delivered."""
        self.failure: CatalogFailed | None = None
        """Set once the catalog applies nothing any more."""
        self._under_way: dict[bytes, list[Submitted]] = {}

    def expect(self, command: Command, payload: bytes) -> Submitted:
        """Begin a submit. The caller has to end it with `forget`."""
        submitted = Submitted(command, payload, self)
        self._under_way.setdefault(payload, []).append(submitted)
        return submitted

    def forget(self, submitted: Submitted) -> None:
        """End a submit: nothing waits for it any more."""
        same = self._under_way[submitted.payload]
        same.remove(submitted)
        if not same:
            del self._under_way[submitted.payload]

    def command(self, payload: bytes) -> Command | None:
        """[any thread] The decoded command with these bytes, if a submit under way here has them; else None."""
        same = self._under_way.get(payload)
        try:
            return same[-1].command if same else None
        except IndexError:  # forgotten meanwhile
            return None

    def tell(self, position: Position, payload: bytes, decided: Decided) -> None:
        """The command whose frame ends at `position` was applied: deliver its outcome."""
        if self._under_way:
            for submitted in self._under_way.get(payload, ()):
                submitted.applied(position, decided)

    def jump(self, position: Position) -> None:
        """The tables were replaced by others at `position`, without applying all commands before it."""
        self.applied = position
        for submitted in self._all_submits():
            if submitted.position is not None and submitted.position <= position:
                submitted.skipped()

    def fail(self, failure: CatalogFailed) -> None:
        """Nothing will be applied any more: all waiting submits fail with `failure`."""
        self.failure = failure
        for submitted in self._all_submits():
            submitted.fail(failure)

    def _all_submits(self) -> list[Submitted]:
        return [submitted for same in self._under_way.values() for submitted in same]


def _mark_seen(waiter: asyncio.Future[Outcome]) -> None:
    """Mark the error as seen, since after a cancelled submit nothing else would see it."""
    if not waiter.cancelled():
        waiter.exception()
