"""What submitted commands came to: brings each outcome from the log's order to the submitter that waits for it.

A submitter here learns the position of its command from whoever wrote it to the log (this node's container, or the
catalog's leader over the network), and the command is applied here when this node's replica has it committed. Either
may come first. So an outcome is kept from the moment it is decided until its submitter is gone, but only of commands
whose bytes equal those of a submit under way here: what others submit costs one look into a dict.

A command that was handed on more than once may stand in the log more than once. Its outcome is that of the first copy:
the others found their work done. Everything here belongs to the loop thread, unless marked otherwise.
"""

import asyncio

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import Position
from headrace.tables.schema import Command, Decided, Outcome


class CatalogFailed(HeadraceError):
    """The catalog is closed, or its file is damaged. Clients try again, at this node after its restart or another."""

    code = Code.COORDINATOR_NOT_AVAILABLE


class NotCommitted(Exception):
    """An attempt to get a command into the log failed with `error`; it may be in the log all the same."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class Submitted:
    """One submit under way: the copies of its command that were applied here, and who waits for which."""

    __slots__ = ("_copies", "_outcomes", "_waiter", "attempts", "command", "payload", "position")

    def __init__(self, command: Command, payload: bytes, outcomes: "Outcomes") -> None:
        self.command = command
        self.payload = payload
        self.attempts = 0
        """How often the command was handed on."""
        self.position: Position | None = None
        """Behind the frame that the last attempt wrote, once that is committed."""
        self._outcomes = outcomes
        self._copies: list[tuple[Position, Decided]] = []
        self._waiter: asyncio.Future[Outcome] | None = None

    def attempt(self) -> asyncio.Future[Outcome]:
        """Begin another attempt: what it comes to, or NotCommitted, or the error with which it was refused.

        Raises CatalogFailed where nothing is applied any more.
        """
        if self._outcomes.failure is not None:
            raise self._outcomes.failure
        self.attempts += 1
        self.position = None
        self._waiter = asyncio.get_running_loop().create_future()
        self._waiter.add_done_callback(_retrieve)
        return self._waiter

    def appended(self, done: asyncio.Future[Position]) -> None:
        """This node's log has committed the command, or lost it."""
        if done.cancelled():
            self.fail(NotCommitted(CatalogFailed("the container went away before the command was committed")))
        elif (error := done.exception()) is not None:
            self.fail(NotCommitted(error))
        else:
            self.committed(done.result())

    def committed(self, position: Position) -> None:
        """The command is committed, its frame ends at `position`."""
        self.position = position
        if position > self._outcomes.applied:
            return
        for at, decided in self._copies:
            if at == position:
                self._settle(decided)
                return
        self.skipped()

    def applied(self, position: Position, decided: Decided) -> None:
        """A command with the same bytes was applied here."""
        self._copies.append((position, decided))
        if position == self.position:
            self._settle(decided)

    def skipped(self) -> None:
        """The tables are past the command without having applied it here: they came from another replica."""
        lost = KafkaError(Code.COORDINATOR_NOT_AVAILABLE, "the catalog was replaced by a snapshot meanwhile")
        self.fail(NotCommitted(lost))

    def fail(self, error: BaseException) -> None:
        """End the attempt with `error`."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def _settle(self, decided: Decided) -> None:
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
        """Everything below is applied, and its outcomes told."""
        self.failure: CatalogFailed | None = None
        """Set once the catalog applies nothing any more."""
        self._under_way: dict[bytes, list[Submitted]] = {}

    def expect(self, command: Command, payload: bytes) -> Submitted:
        """A submit begins. The caller ends it with `forget`."""
        submitted = Submitted(command, payload, self)
        self._under_way.setdefault(payload, []).append(submitted)
        return submitted

    def forget(self, submitted: Submitted) -> None:
        """Nobody waits for it any more."""
        same = self._under_way[submitted.payload]
        same.remove(submitted)
        if not same:
            del self._under_way[submitted.payload]

    def command(self, payload: bytes) -> Command | None:
        """[any thread] The command with these bytes, if one that was submitted here has them."""
        same = self._under_way.get(payload)
        try:
            return same[-1].command if same else None
        except IndexError:  # forgotten meanwhile
            return None

    def tell(self, position: Position, payload: bytes, decided: Decided) -> None:
        """The command whose frame ends at `position` was applied."""
        if self._under_way:
            for submitted in self._under_way.get(payload, ()):
                submitted.applied(position, decided)

    def jump(self, position: Position) -> None:
        """The tables are at `position` now without having applied all that came before."""
        self.applied = position
        for submitted in self._every():
            if submitted.position is not None and submitted.position <= position:
                submitted.skipped()

    def fail(self, failure: CatalogFailed) -> None:
        """Nothing will be applied any more: all that wait hear `failure`."""
        self.failure = failure
        for submitted in self._every():
            submitted.fail(failure)

    def _every(self) -> list[Submitted]:
        return [submitted for same in self._under_way.values() for submitted in same]


def _retrieve(waiter: asyncio.Future[Outcome]) -> None:
    """Mark the error as seen: a cancelled submit leaves nobody to see it."""
    if not waiter.cancelled():
        waiter.exception()
