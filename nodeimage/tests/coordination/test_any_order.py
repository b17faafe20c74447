"""The invariants of groups hold for any order of events from clients, time and the catalog.

Members are simulated from the clients' view: each knows its id, its generation and the assignment that it got.
"""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from headrace.base.errors import Code
from headrace.coordination.limits import GroupLimits
from headrace.coordination.messages import GroupState, JoinResult, Protocol, SyncResult, Token
from kit.group_machine import Machine

GROUP = "g"
PROTOCOLS = {
    "range": (Protocol("range", b"r"),),
    "both": (Protocol("range", b"r"), Protocol("sticky", b"s")),
    "changed": (Protocol("range", b"r2"),),
}


@dataclass(eq=False)
class Client:
    """One client process, with at most one request under way."""

    instance: str | None
    known_member: bool
    skip: bool
    member_id: str = ""
    generation: int = -1
    leads: bool = False
    members: tuple[str, ...] = ()
    waits_for: Token | None = None
    syncing: int = -1


class Groups(RuleBasedStateMachine):
    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        limits = GroupLimits(initial_rebalance_delay_ms=300, max_size=4)
        self.machine = Machine(limits=limits, stores=False)
        self.all: list[Client] = []
        self.tokens: set[Token] = set()
        self.highest = 0
        self.stored_highest = 0
        self.given: dict[tuple[int, str], set[bytes]] = {}
        """Assignments that were answered, by generation and member."""
        self.plans: dict[int, set[bytes]] = {}
        """The leaders' assignments, by generation; each is tagged with the request that contained it."""

    @initialize(target=clients)
    def begin(self) -> object:
        self.all = [Client(None, True, False), Client(None, False, False), Client("i", False, True)]
        return multiple(*self.all)

    @rule(
        target=clients,
        instance=st.sampled_from([None, None, "i", "j"]),
        known_member=st.booleans(),
        skip=st.booleans(),
    )
    def start(self, instance: str | None, known_member: bool, skip: bool) -> object:
        if len(self.all) > 12:
            return multiple()
        client = Client(instance, known_member and instance is None, skip)
        self.all.append(client)
        return client

    @rule(client=clients, offer=st.sampled_from(sorted(PROTOCOLS)), rebalance=st.sampled_from([1_000, 60_000]))
    def join(self, client: Client, offer: str, rebalance: int) -> None:
        token = self.machine.join(
            client.member_id,
            instance=client.instance,
            protocols=PROTOCOLS[offer],
            known_member=client.known_member,
            skip=client.skip,
            rebalance=rebalance,
        )
        client.waits_for = token  # an answer to an earlier request would go to a closed connection
        self.tokens.add(token)
        self._deliver()

    @rule(client=clients)
    def sync(self, client: Client) -> None:
        if client.generation < 0:
            return
        tag = f"{client.generation}/{len(self.tokens)}".encode()
        plan = dict.fromkeys(client.members, tag) if client.leads else {}
        if client.leads:
            self.plans.setdefault(client.generation, set()).add(tag)
        token = self.machine.sync(client.member_id, client.generation, plan, instance=client.instance)
        client.waits_for, client.syncing = token, client.generation
        self.tokens.add(token)
        self._deliver()

    @rule()
    def everybody_goes_on(self) -> None:
        """Each client does what a well-behaved client would do next; then time passes and the catalog stores."""
        for client in self.all:
            if client.waits_for is not None:
                continue
            if client.generation < 0:
                self.join(client, "range", 60_000)
            elif client.syncing != client.generation:
                self.sync(client)
            else:
                self.heartbeat(client)
        self.catalog_answers(True)
        self.pass_time(300)

    @rule(client=clients)
    def heartbeat(self, client: Client) -> None:
        code = self.machine.heartbeat(client.member_id, client.generation, instance=client.instance)
        if code is Code.NONE:
            assert client.generation == self._group().generation
        self._obey(client, code)

    @rule(client=clients)
    def commit(self, client: Client) -> None:
        code = self.machine.commit(client.member_id, client.generation, instance=client.instance)
        if code is Code.NONE and client.generation >= 0:
            assert client.generation == self._group().generation
            assert self._group().state in (GroupState.STABLE, GroupState.PREPARING)

    @rule(client=clients)
    def leave(self, client: Client) -> None:
        self.machine.leave(client.member_id)
        client.member_id, client.generation = "", -1
        self._deliver()

    @rule(ms=st.sampled_from([1, 300, 5_000, 10_000, 61_000]))
    def pass_time(self, ms: int) -> None:
        self.machine.pass_time(ms)
        self._deliver()

    @rule(ok=st.sampled_from([True, True, True, False]))
    def catalog_answers(self, ok: bool) -> None:
        if self.machine.persists:
            generation = self.machine.persists[0].snapshot.generation
            self.machine.store(ok=ok)
            if ok:
                assert generation >= self.stored_highest, "an older generation was stored over a newer one"
                self.stored_highest = generation
            self._deliver()

    @rule()
    def restart(self) -> None:
        self.machine.restart()
        for client in self.all:
            client.waits_for = None
        self.tokens &= self.machine.answered
        self.highest = self.stored_highest
        for generation in [each for each in self.plans if each > self.stored_highest]:
            del self.plans[generation]  # nobody got these; their numbers will be used again

    @invariant()
    def generation_never_goes_back(self) -> None:
        generation = self._group().generation
        assert generation >= self.highest
        self.highest = generation

    @invariant()
    def stable_group_is_one_leaders_work(self) -> None:
        group = self._group()
        if group.state is GroupState.STABLE:
            tags = {member.assignment for member in group.members} - {b""}
            assert len(tags) <= 1
            assert tags <= self.plans.get(group.generation, set())
            assert self.machine.catalog[GROUP].generation == group.generation
            assert group.members.leader in group.members

    @invariant()
    def states_fit_their_members(self) -> None:
        group = self._group()
        waiting = [member for member in group.members if member.join_token is not None]
        assert group.members.joining == len(waiting)
        if group.state is GroupState.EMPTY:
            assert not len(group.members)
        if group.state in (GroupState.COMPLETING, GroupState.STABLE):
            assert len(group.members)
            assert len(group.members) <= 4 + 1  # a silent static member may exceed the limit by one
        if group.state is GroupState.COMPLETING:
            assert not waiting
        instances = [member.instance_id for member in group.members if member.instance_id]
        assert len(instances) == len(set(instances))

    def teardown(self) -> None:
        self.machine.stores = True
        self.machine.collect()
        self.machine.pass_time(2_000_000)
        assert self._group().state is GroupState.EMPTY
        assert not self._group().pending
        assert self.machine.coordinator.next_deadline is None, "something still ticks in an empty group"
        assert self.tokens <= self.machine.answered, "a request was never answered"

    def _group(self):  # type: ignore[no-untyped-def]
        self.machine.load(GROUP)
        return self.machine.coordinator.group(GROUP)

    def _obey(self, client: Client, code: Code) -> None:
        if code is Code.REBALANCE_IN_PROGRESS and client.waits_for is None:
            self.join(client, "range", 60_000)
        elif code in (Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID):
            client.member_id, client.generation = "", -1

    def _deliver(self) -> None:
        for client in self.all:
            token = client.waits_for
            result = self.machine.answers.get(token) if token is not None else None
            if result is None:
                continue
            client.waits_for = None
            if isinstance(result, JoinResult):
                self._joined(client, result)
            else:
                self._synced(client, result)
        self.machine.answers.clear()

    def _joined(self, client: Client, result: JoinResult) -> None:
        if result.code is Code.MEMBER_ID_REQUIRED:
            client.member_id = result.member_id
        elif result.code is Code.NONE:
            client.member_id, client.generation = result.member_id, result.generation
            client.leads = result.leader == result.member_id and not result.skip_assignment
            client.members = tuple(member.member_id for member in result.members)
            group = self._group()
            assert result.generation <= group.generation
            if result.generation == group.generation and group.state is GroupState.COMPLETING:
                assert client.member_id in group.members
                if result.leader == result.member_id:
                    assert set(client.members) == {member.member_id for member in group.members}
        else:
            self._obey(client, result.code)

    def _synced(self, client: Client, result: SyncResult) -> None:
        if result.code is not Code.NONE:
            assert result.assignment == b""
            self._obey(client, result.code)
            return
        assert self.machine.catalog[GROUP].generation == client.syncing, "an assignment that is not stored"
        stored = {member.member_id: member.assignment for member in self.machine.catalog[GROUP].members}
        assert stored.get(client.member_id) == result.assignment
        given = self.given.setdefault((client.syncing, client.member_id), set())
        given.add(result.assignment)
        assert len(given) == 1, "two assignments in one generation"


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
