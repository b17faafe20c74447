"""Which expression decides: inheritance, administrators, and which decisions are cached."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.security import access_rules
from headrace.security.access_rules import (
    NOT_SECURED,
    AccessRules,
    Kind,
    Permission,
    Rule,
    UnknownPlace,
    owned_by,
    place_of,
)

NONE: frozenset[str] = frozenset()
PRODUCE, CONSUME, ADMIN = Permission.PRODUCE, Permission.CONSUME, Permission.ADMIN
PLANT = "/plant/hall-1/pumps"
NEAREST = (
    (Kind.TOPIC, f"{PLANT}:flow"),
    (Kind.STREAM, PLANT),
    (Kind.PREFIX, PLANT),
    (Kind.PREFIX, "/plant/hall-1"),
    (Kind.PREFIX, "/plant"),
    (Kind.CLUSTER, ""),
)
"""The places that decide about the topic, nearest first."""


def rules(*given: tuple[Kind, str, Permission, str]) -> AccessRules:
    return AccessRules.of([Rule(*each) for each in given], on=True)


@pytest.mark.parametrize("nearest", range(len(NEAREST)))
def test_the_nearest_expression_decides_alone(nearest: int) -> None:
    further = [(kind, name, PRODUCE, "u:far") for kind, name in NEAREST[nearest + 1 :]]
    kind, name = NEAREST[nearest]
    made = rules((kind, name, PRODUCE, "u:near"), *further)
    assert made.allows("near", NONE, PRODUCE, Kind.TOPIC, f"{PLANT}:flow")
    assert not made.allows("far", NONE, PRODUCE, Kind.TOPIC, f"{PLANT}:flow")
    assert not made.allows("near", NONE, CONSUME, Kind.TOPIC, f"{PLANT}:flow"), "another permission"
    decision = made.explain("far", NONE, PRODUCE, Kind.TOPIC, f"{PLANT}:flow")
    assert (decision.allowed, decision.rule) == (False, Rule(kind, name, PRODUCE, "u:near"))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Kind.STREAM, "/plant/hall-10"),
        (Kind.STREAM, "/plan"),
        (Kind.TOPIC, "/plant/hall-10:flow"),
        (Kind.TOPIC, "/plant/hall-1x/pumps:flow"),
        (Kind.CLUSTER, ""),
        (Kind.GROUP, "/plant/hall-1"),
    ],
)
def test_a_prefix_is_of_whole_segments_and_of_streams_alone(kind: Kind, name: str) -> None:
    assert not rules((Kind.PREFIX, "/plant/hall-1", PRODUCE, "p")).allows("alice", NONE, PRODUCE, kind, name)


def test_of_groups_the_longest_beginning_counts_and_then_the_cluster() -> None:
    made = rules(
        (Kind.GROUP_PREFIX, "", CONSUME, "u:all"),
        (Kind.GROUP_PREFIX, "ops-", CONSUME, "u:ops"),
        (Kind.GROUP_PREFIX, "ops-night-", CONSUME, ""),
        (Kind.TRANSACTIONAL_ID_PREFIX, "ops-", PRODUCE, "u:tx"),
        (Kind.CLUSTER, "", PRODUCE, "u:cluster"),
    )
    for name, who in (("dev", "all"), ("ops", "all"), ("ops-", "ops"), ("ops-day", "ops"), ("ops-night-1", None)):
        assert [user for user in ("all", "ops") if made.allows(user, NONE, CONSUME, Kind.GROUP, name)] == [
            each for each in [who] if each
        ]
    assert made.allows("tx", NONE, PRODUCE, Kind.TRANSACTIONAL_ID, "ops-1")
    assert made.allows("cluster", NONE, PRODUCE, Kind.TRANSACTIONAL_ID, "dev")


@pytest.mark.parametrize(
    ("one", "beginning", "permission"),
    [
        (Kind.GROUP, Kind.GROUP_PREFIX, CONSUME),
        (Kind.TRANSACTIONAL_ID, Kind.TRANSACTIONAL_ID_PREFIX, PRODUCE),
    ],
)
def test_an_exact_name_is_nearer_than_every_beginning(one: Kind, beginning: Kind, permission: Permission) -> None:
    made = rules(
        (one, "ops", permission, "u:exact"),
        (beginning, "ops", permission, "u:begins"),
        (Kind.CLUSTER, "", permission, "u:cluster"),
    )

    def who(kind: Kind, name: str) -> list[str]:
        return [user for user in ("exact", "begins", "cluster") if made.allows(user, NONE, permission, kind, name)]

    assert [who(one, name) for name in ("ops", "ops-1", "op")] == [["exact"], ["begins"], ["cluster"]]
    assert [who(beginning, name) for name in ("ops", "ops-1", "op")] == [["begins"], ["begins"], ["cluster"]]
    decision = made.explain("begins", NONE, permission, one, "ops")
    assert (decision.allowed, decision.rule) == (False, Rule(one, "ops", permission, "u:exact"))
    assert not made.any_topic("exact", NONE, permission), "it is no topic"


def test_administrators_of_the_cluster_may_do_everything_and_those_of_a_stream_what_it_says() -> None:
    made = rules(
        (Kind.CLUSTER, "", ADMIN, "g:admins"),
        (Kind.STREAM, "/s", ADMIN, "u:alice"),
        (Kind.TOPIC, "/s:t", PRODUCE, ""),
    )
    admins = frozenset({"admins"})
    for permission in Permission:
        assert made.allows("root", admins, permission, Kind.TOPIC, "/s:t")
        assert made.explain("root", admins, permission, Kind.TOPIC, "/s:t").allowed
        assert made.allows("alice", NONE, permission, Kind.TOPIC, "/s:t") == (permission is ADMIN)
    assert not made.allows("alice", NONE, ADMIN)
    assert made.explain("root", admins, PRODUCE).rule == Rule(Kind.CLUSTER, "", ADMIN, "g:admins")


def test_where_nothing_is_said_nobody_may_and_the_reason_says_so() -> None:
    made = rules()
    assert not any(made.allows("alice", NONE, permission, Kind.STREAM, "/s") for permission in Permission)
    decision = made.explain("alice", NONE, PRODUCE, Kind.STREAM, "/s")
    assert (decision.allowed, decision.rule) == (False, None)
    assert "no expression says who may produce here" in decision.reason


def test_while_security_is_off_everybody_may() -> None:
    off = AccessRules.of([Rule(Kind.STREAM, "/s", PRODUCE, "")], on=False)
    for each in (off, NOT_SECURED):
        assert each.allows("ANONYMOUS", NONE, PRODUCE, Kind.STREAM, "/s")
        assert each.any_topic("ANONYMOUS", NONE, PRODUCE)
        assert each.explain("ANONYMOUS", NONE, ADMIN).allowed


def test_some_topic_is_one_that_any_expression_gives_but_no_group() -> None:
    made = rules((Kind.GROUP, "g", CONSUME, "u:alice"), (Kind.TOPIC, "/s:t", PRODUCE, "u:alice"))
    assert made.any_topic("alice", NONE, PRODUCE)
    assert not made.any_topic("alice", NONE, CONSUME)
    assert not made.any_topic("bob", NONE, PRODUCE)


def test_who_consumes_some_topic_may_use_a_group_of_which_nothing_is_said_and_hears_why() -> None:
    made = rules((Kind.TOPIC, "/s:t", CONSUME, "u:alice"), (Kind.GROUP_PREFIX, "ops-", CONSUME, "u:ops"))
    assert made.allows("alice", NONE, CONSUME, Kind.GROUP, "dev")
    decision = made.explain("alice", NONE, CONSUME, Kind.GROUP, "dev")
    assert (decision.allowed, decision.rule) == (True, None)
    assert "a user needs consume on at least one topic" in decision.reason
    assert not made.allows("alice", NONE, CONSUME, Kind.GROUP, "ops-1")
    assert not made.allows("ops", NONE, CONSUME, Kind.GROUP, "dev"), "a group is no topic"
    assert not made.allows("alice", NONE, ADMIN, Kind.GROUP, "dev")
    shut = made.changed({(Kind.CLUSTER, "", CONSUME): ""})
    assert not shut.allows("alice", NONE, CONSUME, Kind.GROUP, "dev"), "the cluster decides"


def test_who_produces_to_some_topic_may_use_a_transactional_id_of_which_nothing_is_said() -> None:
    made = rules((Kind.TOPIC, "/s:t", PRODUCE, "u:alice"), (Kind.TRANSACTIONAL_ID_PREFIX, "ops-", PRODUCE, "u:ops"))
    assert made.allows("alice", NONE, PRODUCE, Kind.TRANSACTIONAL_ID, "dev")
    assert not made.allows("alice", NONE, PRODUCE, Kind.TRANSACTIONAL_ID, "ops-1")
    assert not made.allows("ops", NONE, PRODUCE, Kind.TRANSACTIONAL_ID, "dev")
    assert not made.any_topic("ops", NONE, PRODUCE)


def test_topics_without_an_expression_of_their_own_are_decided_once_for_their_stream() -> None:
    made = rules((Kind.STREAM, "/s", PRODUCE, "u:alice"), (Kind.TOPIC, "/s:own", CONSUME, "p"))
    assert [made.decided_by(name) for name in ("/s:t", "/s:u", "/s:own")] == ["/s", "/s", "/s:own"]
    for number in range(1000):
        assert made.allows("alice", NONE, PRODUCE, Kind.TOPIC, f"/s:{number}")
    assert made.allows("alice", NONE, PRODUCE, Kind.TOPIC, "/s:own")
    assert len(made._decided) == 2


def test_a_text_that_is_no_expression_lets_nobody_in_but_administrators() -> None:
    made = rules(
        (Kind.CLUSTER, "", ADMIN, "u:root"), (Kind.CLUSTER, "", PRODUCE, "p"), (Kind.STREAM, "/s", PRODUCE, "u:")
    )
    assert made.faults == [Rule(Kind.STREAM, "/s", PRODUCE, "u:")]
    assert not made.allows("alice", NONE, PRODUCE, Kind.STREAM, "/s")
    assert "cannot read" in made.explain("alice", NONE, PRODUCE, Kind.STREAM, "/s").reason
    assert made.allows("root", NONE, PRODUCE, Kind.STREAM, "/s")
    assert rules((Kind.STREAM, "/s", PRODUCE, "")).faults == [], "nobody is an expression"


def test_an_expression_on_a_kind_of_another_version_leaves_everything_to_administrators() -> None:
    strange = place_of("group-suffix", "-x", "consume")
    assert strange == UnknownPlace("group-suffix", "-x", "consume")
    before = rules((Kind.CLUSTER, "", ADMIN, "u:root"), (Kind.CLUSTER, "", CONSUME, "p"))
    shut = before.changed({}, unknown={strange: "p"})
    assert shut.unknown == {strange}
    for kind, name in ((Kind.TOPIC, "/s:t"), (Kind.GROUP, "g"), (Kind.CLUSTER, "")):
        assert not shut.allows("alice", NONE, CONSUME, kind, name)
        assert shut.allows("root", NONE, CONSUME, kind, name)
        assert "this version does not know, 'group-suffix'" in shut.explain("alice", NONE, CONSUME, kind, name).reason
    assert not shut.any_topic("alice", NONE, CONSUME)
    assert shut.any_topic("root", NONE, CONSUME)
    assert shut.changed({}, on=False).allows("alice", NONE, CONSUME, Kind.TOPIC, "/s:t")
    assert shut.changed({}, unknown={strange: None}).allows("alice", NONE, CONSUME, Kind.TOPIC, "/s:t")


def test_a_permission_of_another_version_is_told_and_changes_nothing_that_is_asked_for() -> None:
    strange = place_of("stream", "/s", "peek")
    assert isinstance(strange, UnknownPlace)
    made = rules((Kind.CLUSTER, "", CONSUME, "u:alice")).changed({}, unknown={strange: "p"})
    assert made.unknown == {strange}
    assert made.allows("alice", NONE, CONSUME, Kind.STREAM, "/s")
    assert not made.allows("bob", NONE, CONSUME, Kind.STREAM, "/s")


def test_changes_are_of_some_places_and_what_was_decided_before_is_not_asked_again() -> None:
    before = rules((Kind.STREAM, "/s", PRODUCE, "u:alice"), (Kind.CLUSTER, "", PRODUCE, "u:bob"))
    assert before.allows("alice", NONE, PRODUCE, Kind.TOPIC, "/s:t")
    after = before.changed({(Kind.STREAM, "/s", PRODUCE): None, (Kind.TOPIC, "/s:u", PRODUCE): "p"})
    assert not after.allows("alice", NONE, PRODUCE, Kind.TOPIC, "/s:t")
    assert after.allows("bob", NONE, PRODUCE, Kind.TOPIC, "/s:t")
    assert after.allows("carol", NONE, PRODUCE, Kind.TOPIC, "/s:u")
    assert before.allows("alice", NONE, PRODUCE, Kind.TOPIC, "/s:t"), "the former rules are as they were"
    assert after.changed({}, on=False).allows("carol", NONE, ADMIN)


def test_a_stream_that_is_gone_leaves_nothing_and_its_neighbours_stay() -> None:
    kept = [(Kind.STREAM, "/s2", PRODUCE, "p"), (Kind.TOPIC, "/s2:t", PRODUCE, "p"), (Kind.PREFIX, "/s", PRODUCE, "")]
    made = rules((Kind.STREAM, "/s", PRODUCE, "p"), (Kind.TOPIC, "/s:t", PRODUCE, "p"), *kept).without("/s")
    assert not made.allows("alice", NONE, PRODUCE, Kind.TOPIC, "/s:t")
    assert made.allows("alice", NONE, PRODUCE, Kind.TOPIC, "/s2:t")
    assert made.without("/none") is made.without("/s2:none") is made


def test_a_topic_that_is_gone_leaves_its_streams_expression() -> None:
    made = rules(
        (Kind.STREAM, "/s", PRODUCE, "p"), (Kind.TOPIC, "/s:t", PRODUCE, ""), (Kind.TOPIC, "/s:t2", PRODUCE, "")
    )
    after = made.without("/s:t")
    assert after.allows("alice", NONE, PRODUCE, Kind.TOPIC, "/s:t")
    assert not after.allows("alice", NONE, PRODUCE, Kind.TOPIC, "/s:t2")


def test_of_long_names_no_decision_is_kept() -> None:
    rules = AccessRules.of([Rule(Kind.GROUP_PREFIX, "g", Permission.CONSUME, "u:a")], on=True)
    for name in ("g" * 300, "g" * 30_000):
        assert rules.allows("a", frozenset(), Permission.CONSUME, Kind.GROUP, name)
        assert not rules.allows("b", frozenset(), Permission.CONSUME, Kind.GROUP, name)
    assert {len(key[3]) for key in rules._decided} == {300}


def test_the_rule_that_decides_and_topics_that_have_their_own_are_told() -> None:
    on_stream = Rule(Kind.STREAM, "/a", Permission.COPY, "u:a")
    on_topic = Rule(Kind.TOPIC, "/a:t", Permission.COPY, "")
    rules = AccessRules.of([on_stream, on_topic], on=True)
    assert rules.deciding(Permission.COPY, Kind.TOPIC, "/a:t") == on_topic
    assert rules.deciding(Permission.COPY, Kind.TOPIC, "/a:other") == on_stream
    assert rules.deciding(Permission.ADMIN, Kind.CLUSTER) is None
    assert rules.of_topics("/a") == [(Kind.TOPIC, "/a:t", Permission.COPY)]
    assert rules.of_topics("/ab") == ()
    assert rules.without("/a:t").of_topics("/a") == ()


def test_a_new_stream_is_its_creators_alone() -> None:
    made = rules(*((Kind.STREAM, "/s", permission, text) for permission, text in owned_by("al|ice").items()))
    for permission in Permission:
        assert made.allows("al|ice", NONE, permission, Kind.TOPIC, "/s:t")
        assert not made.allows("al", NONE, permission, Kind.TOPIC, "/s:t")
    assert made.users() == {"al|ice"}


names = st.sampled_from(["/a", "/a/b", "/a/b:t", "/ab", "", "/a/b/c:t", "g", "gr"])
expressions = st.sampled_from(["u:x", "g:y", "p", "", "!u:x", "u:x & g:y"])


@given(
    st.lists(st.tuples(st.sampled_from(Kind), names, st.sampled_from(Permission), expressions), max_size=12),
    st.lists(
        st.tuples(
            st.sampled_from(["x", "z"]),
            st.sampled_from([NONE, frozenset({"y"})]),
            st.sampled_from(Permission),
            st.sampled_from(Kind),
            names,
        ),
        max_size=30,
    ),
)
def test_what_is_kept_of_decisions_is_what_is_explained(
    given: list[tuple[Kind, str, Permission, str]],
    asked: list[tuple[str, frozenset[str], Permission, Kind, str]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(access_rules, "_MAX_DECISIONS", 4)
        made = rules(*given)
        for each in [*asked, *asked]:
            assert made.allows(*each) == made.explain(*each).allowed
            assert len(made._decided) <= 4


class Model:
    """Who may use a group, found by searching all expressions."""

    def __init__(self, given: list[tuple[Kind, str, str]]) -> None:
        self.given = {(kind, name): text for kind, name, text in given}

    def may(self, user: str, group: str) -> bool:
        exact = [text for (kind, name), text in self.given.items() if (kind, name) == (Kind.GROUP, group)]
        begins = {
            name: text
            for (kind, name), text in self.given.items()
            if kind is Kind.GROUP_PREFIX and group.startswith(name)
        }
        for text in (*exact, *(begins[name] for name in sorted(begins, key=len, reverse=True))):
            return self.lets_in(text, user)
        cluster = self.given.get((Kind.CLUSTER, ""))
        if cluster is not None:
            return self.lets_in(cluster, user)
        return any(self.lets_in(text, user) for (kind, _), text in self.given.items() if kind is Kind.STREAM)

    @staticmethod
    def lets_in(text: str, user: str) -> bool:
        return {"p": True, "": False}.get(text, text == f"u:{user}")


group_names = st.text("ab-", max_size=4)
of_groups = st.one_of(
    st.tuples(st.sampled_from([Kind.GROUP, Kind.GROUP_PREFIX]), group_names, st.sampled_from(["u:x", "u:z", "p", ""])),
    st.sampled_from([(Kind.CLUSTER, "", "u:x"), (Kind.STREAM, "/s", "u:z")]),
)


@given(st.lists(of_groups, max_size=10), st.lists(group_names, min_size=1, max_size=10))
def test_groups_are_decided_as_the_model_does(given: list[tuple[Kind, str, str]], asked: list[str]) -> None:
    places = {(kind, name, CONSUME): text for kind, name, text in given}
    made = NOT_SECURED.changed(dict(places), on=True)
    for user in ("x", "z"):
        for group in asked:
            allowed = made.allows(user, NONE, CONSUME, Kind.GROUP, group)
            assert allowed == Model(given).may(user, group)
            assert allowed == made.explain(user, NONE, CONSUME, Kind.GROUP, group).allowed
            first = next((each for each in made.nearest_first(CONSUME, Kind.GROUP, group) if each in places), None)
            deciding = made.deciding(CONSUME, Kind.GROUP, group)
            assert first == (None if deciding is None else deciding[:3])
