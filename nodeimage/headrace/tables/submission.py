"""Gets commands of this node into the catalog's log, and waits until they are applied here.

    this node leads      append to the container -> committed -> applied here
    another node leads   `route` to the catalog's leader -> committed there -> replicated to this node -> applied here

A failure before the commit (the leader stepped down, does not answer, or there is none) is retried, after growing
pauses, for LIMIT_S in all. A failed attempt may have left its command in the log nevertheless, so commands may be
repeated (catalog/command.py describes the effect of a repeat). But no command that this process has given up enters
the log after one that it began later (node/submit_fencing.py). Everything runs on the loop thread.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from headrace.base.backoff import Backoff
from headrace.base.errors import Code, CorruptLog, FolderRefused, HeadraceError, KafkaError, StorageFull
from headrace.base.ids import Position
from headrace.tables.command_apply import Applier
from headrace.tables.command_log import CommandLog
from headrace.tables.outcomes import NotCommitted, Outcomes, Submitted
from headrace.tables.schema import Command, Outcome

Route = Callable[[bytes], Awaitable[Position]]
"""Sends a command's payload to the catalog's leader, which writes it; returns the position after it, once committed.

One call is one attempt: if the command may have been sent already, it raises an error rather than send the command
again, so that every repeat is known to be one. Temporary errors (no leader, no contact) are HeadraceError or OSError.
"""

LIMIT_S: Final = 15.0
"""Limit of seconds until a command is committed, or, if another node leads, until it is applied here."""
_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.5

_RETRIABLE: Final = frozenset(
    {
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REQUEST_TIMED_OUT,
        Code.BROKER_NOT_AVAILABLE,
        Code.REPLICA_NOT_AVAILABLE,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Code.NOT_CONTROLLER,
    }
)
"""Errors after which another attempt, perhaps at another leader, may succeed."""


class Submitter:
    """Gets the commands of one catalog into its log."""

    def __init__(self, *, command_log: CommandLog, applier: Applier, outcomes: Outcomes, route: Route | None) -> None:
        """Without a `route`, commands wait until this node leads."""
        self._log = command_log
        self._applier = applier
        self._outcomes = outcomes
        self._route = route
        self._loop = asyncio.get_running_loop()

    async def submit(self, command: Command, payload: bytes, *, here: bool) -> Outcome:
        """Submit a command; returns its outcome once it is applied here. `here`: never send it to another node."""
        submitted = self._outcomes.expect(command, payload)
        try:
            return await self._until_committed(submitted, here=here)
        finally:
            self._outcomes.forget(submitted)

    async def append(self, payload: bytes, *, admit: Callable[[], None] = lambda: None) -> asyncio.Future[Position]:
        """Append a command to the log of this node, which leads; returns the future of its commit. `admit` may refuse
        it by raising an error."""
        await self._applier.let_append()
        try:
            admit()
            return self._log.append_command(payload)
        except HeadraceError as error:
            refused: asyncio.Future[Position] = self._loop.create_future()
            refused.set_exception(error)
            return refused

    async def _until_committed(self, submitted: Submitted, *, here: bool) -> Outcome:
        deadline = self._loop.time() + LIMIT_S
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            try:
                if self._log.leads:
                    return await self._by_this_node(submitted, deadline)
                if here:
                    raise KafkaError(Code.NOT_COORDINATOR, "this node does not lead the catalog")
                return await self._by_another(submitted, deadline)
            except NotCommitted as failure:
                error = failure.error
            if not _is_temporary(error):
                raise error
            if here:
                raise KafkaError(Code.NOT_COORDINATOR, f"this node no longer leads the catalog: {error}") from error
            pause = backoff.failed()
            if self._loop.time() + pause >= deadline:
                raise _timed_out(submitted, error) from error
            await asyncio.sleep(pause)

    async def _by_this_node(self, submitted: Submitted, deadline: float) -> Outcome:
        waiter = submitted.attempt()
        (await self.append(submitted.payload)).add_done_callback(submitted.appended)
        late = self._loop.call_at(deadline, _fail_uncommitted, submitted)
        try:
            return await waiter
        finally:
            late.cancel()

    async def _by_another(self, submitted: Submitted, deadline: float) -> Outcome:
        waiter = submitted.attempt()
        if self._route is None:
            raise NotCommitted(KafkaError(Code.NOT_CONTROLLER, "no node is known to lead the catalog"))
        try:
            async with asyncio.timeout_at(deadline) as limit:
                try:
                    position = await self._route(submitted.payload)
                except (HeadraceError, OSError) as error:
                    raise NotCommitted(error) from error
                submitted.committed(position)
                return await waiter
        except TimeoutError as error:
            assert limit.expired()  # a TimeoutError of the route is an OSError, and was handled above
            raise _timed_out(submitted, None) from error


def _is_temporary(error: BaseException) -> bool:
    if isinstance(error, KafkaError):
        return error.code in _RETRIABLE
    if isinstance(error, StorageFull | CorruptLog | FolderRefused):
        return False
    return isinstance(error, HeadraceError | OSError)


def _fail_uncommitted(submitted: Submitted) -> None:
    """Fail a submit whose time is up, unless its command is committed, and only waits for room on the disk."""
    if submitted.position is None:
        submitted.fail(_timed_out(submitted, None))


def _timed_out(submitted: Submitted, error: BaseException | None) -> KafkaError:
    what = type(submitted.command).__name__
    if submitted.position is not None:
        reason = f"{what} is committed at {submitted.position}, but this node has not applied it"
    else:
        last = "no answer" if error is None else str(error)
        reason = f"{what} was not committed in {submitted.attempts} attempts (the last: {last}); it may still happen"
    return KafkaError(Code.REQUEST_TIMED_OUT, f"{reason}; the limit is {LIMIT_S:g} s")
