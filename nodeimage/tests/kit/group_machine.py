"""A coordinator driven by hand: with a manual clock, answers by token, and a catalog that stores on command."""

from collections.abc import Mapping
from itertools import count

from headrace.base.errors import Code
from headrace.catalog.names import DEFAULT_STREAM
from headrace.coordination.coordinator import Coordinator
from headrace.coordination.limits import GroupLimits
from headrace.coordination.messages import (
    Answer,
    Departure,
    GroupView,
    Join,
    JoinResult,
    Persist,
    Protocol,
    Sync,
    SyncResult,
    Token,
)
from headrace.coordination.snapshot import GroupSnapshot

DELAY = 300
SESSION = 10_000
REBALANCE = 60_000
RANGE = (Protocol("range", b"topics"),)


class Machine:
    """`answers` holds the answers not yet examined; with `stores=False`, Persists are left to `store`."""

    def __init__(self, *, limits: GroupLimits | None = None, stores: bool = True) -> None:
        self.limits = limits or GroupLimits(initial_rebalance_delay_ms=DELAY)
        self.tokens = count(1)
        self.suffixes = count(1)
        self.now = 1_000_000
        self.stores = stores
        self.catalog: dict[str, GroupSnapshot] = {}
        self.persists: list[Persist] = []
        self.answers: dict[Token, JoinResult | SyncResult] = {}
        self.answered: set[Token] = set()
        self.coordinator = self._new()

    def _new(self) -> Coordinator:
        return Coordinator(limits=self.limits, new_suffix=lambda: f"#{next(self.suffixes)}")

    def restart(self) -> None:
        """Start a new process with the contents of the catalog."""
        self.coordinator = self._new()
        self.persists = []
        self.answers = {}

    # --- requests

    def join(
        self,
        member_id: str = "",
        *,
        group: str = "g",
        instance: str | None = None,
        protocols: tuple[Protocol, ...] = RANGE,
        protocol_type: str = "consumer",
        session: int = SESSION,
        rebalance: int = REBALANCE,
        known_member: bool = False,
        skip: bool = False,
        default_stream: str = DEFAULT_STREAM,
    ) -> Token:
        self.load(group)
        token = Token(next(self.tokens))
        request = Join(
            group_id=group,
            member_id=member_id,
            instance_id=instance,
            client_id="client",
            client_host="/127.0.0.1",
            session_timeout_ms=session,
            rebalance_timeout_ms=rebalance,
            protocol_type=protocol_type,
            protocols=protocols,
            requires_known_member=known_member,
            can_skip_assignment=skip,
            default_stream=default_stream,
        )
        self.coordinator.join(request, token=token, now=self.now)
        self.collect()
        return token

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        group: str = "g",
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> Token:
        self.load(group)
        token = Token(next(self.tokens))
        request = Sync(
            group_id=group,
            generation=generation,
            member_id=member_id,
            instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol,
            assignments=assignments or {},
        )
        self.coordinator.sync(request, token=token, now=self.now)
        self.collect()
        return token

    def heartbeat(self, member_id: str, generation: int, *, group: str = "g", instance: str | None = None) -> Code:
        self.load(group)
        return self.coordinator.heartbeat(
            group, member_id=member_id, instance_id=instance, generation=generation, now=self.now
        )

    def commit(self, member_id: str, generation: int, *, group: str = "g", instance: str | None = None) -> Code:
        self.load(group)
        return self.coordinator.admit_commit(
            group, member_id=member_id, instance_id=instance, generation=generation, now=self.now
        )

    def leave(self, *members: Departure | str, group: str = "g") -> list[Code]:
        self.load(group)
        departures = [Departure(each) if isinstance(each, str) else each for each in members]
        codes = self.coordinator.leave(group, departures, now=self.now)
        self.collect()
        return codes

    def describe(self, group: str = "g") -> GroupView:
        self.load(group)
        return self.coordinator.describe(group)

    def load(self, group: str) -> None:
        self.coordinator.load(group, self.catalog.get(group), now=self.now)
        self.collect()

    # --- time and storing

    def pass_time(self, ms: int) -> None:
        """Advance the clock, ringing at each deadline as the shell does."""
        end = self.now + ms
        while (due := self.coordinator.next_deadline) is not None and due <= end:
            self.now = max(self.now, due)
            self.coordinator.tick(self.now)
            self.collect()
        self.now = end

    def store(self, *, ok: bool = True) -> None:
        """Carry out the oldest Persist, or fail it."""
        persist = self.persists.pop(0)
        group = persist.snapshot.group_id
        if ok:
            self.catalog[group] = persist.snapshot
        self.coordinator.persisted(group, persist.ticket, ok=ok, now=self.now)
        self.collect()

    def collect(self) -> None:
        for effect in self.coordinator.take_effects():
            if isinstance(effect, Answer):
                assert effect.token not in self.answered, "a request was answered twice"
                self.answered.add(effect.token)
                self.answers[effect.token] = effect.result
            elif isinstance(effect, Persist):
                self.persists.append(effect)
        while self.stores and self.persists:
            self.store()

    # --- answers

    def joined(self, token: Token) -> JoinResult:
        result = self.answers.pop(token)
        assert isinstance(result, JoinResult)
        return result

    def synced(self, token: Token) -> SyncResult:
        result = self.answers.pop(token)
        assert isinstance(result, SyncResult)
        return result

    def waits(self, token: Token) -> bool:
        return token not in self.answered

    # --- a group as most tests want it

    def stable(
        self, members: int = 2, *, instances: tuple[str, ...] = (), protocols: tuple[Protocol, ...] = RANGE
    ) -> tuple[list[str], int]:
        """A Stable group "g": member ids, the leader's first, and the generation; b"a0" is the leader's assignment."""
        count_of = len(instances) or members
        tokens = [
            self.join(instance=instances[index] if instances else None, protocols=protocols)
            for index in range(count_of)
        ]
        self.pass_time(count_of * DELAY)
        results = [self.joined(token) for token in tokens]
        assert {result.code for result in results} == {Code.NONE}
        (leader,) = {result.leader for result in results}
        ids = sorted((result.member_id for result in results), key=lambda each: each != leader)
        generation = results[0].generation
        plan = {member_id: f"a{index}".encode() for index, member_id in enumerate(ids)}
        waiting = [self.sync(member_id, generation) for member_id in ids[1:]]
        waiting.insert(0, self.sync(leader, generation, plan))
        for index, token in enumerate(waiting):
            assert self.synced(token).assignment == f"a{index}".encode()
        return ids, generation
