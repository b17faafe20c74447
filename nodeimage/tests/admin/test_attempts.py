"""Admin calls that somebody without the right attempts: each is refused, and has no effect.

mallory is a user without any right; ann administers /plant and below; bob administers only the stream /plant/flow;
root administers the cluster. /secret is root's, with a topic, a group and a link.
"""

import asyncio

import pytest

from headrace.base.errors import Code
from headrace.base.ids import Millis
from headrace.catalog.link_config import LinkConfig
from headrace.catalog.links import PutLink
from headrace.node.parts import NodeParts
from headrace.security.principals import Mechanism
from headrace.wire.api_keys import ApiKey
from kit.access import principal
from kit.admin_calls import create
from kit.callers import PASSWORD, Callers
from kit.one_node import until
from kit.parts import Ask

pytestmark = pytest.mark.usefixtures("node")


@pytest.fixture
async def callers(broker: NodeParts, ask: Ask) -> Callers:
    callers = Callers(broker)
    for path in ("/plant/flow", "/secret"):
        await callers.call("", "stream.create", path=path)
        await create(ask, f"{path}:t")
    for name in ("mallory", "ann", "bob"):
        await callers.call("", "user.create", name=name, password=PASSWORD)
    config = LinkConfig(source=["127.0.0.1:1"], source_stream="/s", topics=["*"], source_cluster="far")
    await broker.catalog.submit(PutLink(name="hidden", stream="/secret", config=config, now=Millis(0), create=True))
    await callers.secure()
    await callers.access("root", {"/plant/*": {"admin": "u:ann"}, "/plant/flow": {"admin": "u:bob"}})
    return callers


async def id_of(callers: Callers, name: str) -> bytes:
    (topic,) = await callers.parts.topics.resolve([name])
    found: bytes = topic.topic_id  # type: ignore[union-attr]
    return found


async def test_makes_himself_an_administrator_by_an_expression(callers: Callers) -> None:
    items = [{"object": "cluster", "permission": "admin", "expression": "u:mallory"}]
    await callers.refused("mallory", "access.set", items=items)
    await callers.refused("bob", "access.set", items=items, force=True)


async def test_hides_an_object_of_others_among_his_own(callers: Callers) -> None:
    items = [
        {"object": "/plant/flow", "permission": "produce", "expression": "p"},
        {"object": "/secret", "permission": "consume", "expression": "p"},
    ]
    await callers.refused("bob", "access.set", items=items)
    assert not [each for each in await callers.call("root", "access.list") if each["permission"] != "admin"]


async def test_names_a_topic_of_others_by_its_alias(callers: Callers) -> None:
    await callers.refused(
        "bob", "access.set", items=[{"object": "secret..t", "permission": "consume", "expression": "p"}]
    )
    await callers.refused("bob", "topic.show", topic="secret..t")
    await callers.refused("bob", "chain", topic="secret..t")


async def test_sets_what_holds_above_his_stream(callers: Callers) -> None:
    for name in ("/plant/*", "/plant/flow/*", "cluster"):
        await callers.refused("bob", "access.set", items=[{"object": name, "permission": "admin", "expression": "p"}])


async def test_joins_the_group_of_the_administrators(callers: Callers) -> None:
    await callers.refused("mallory", "user.alter", name="mallory", groups=["admins"])


async def test_sets_the_password_of_an_administrator(callers: Callers) -> None:
    await callers.refused("mallory", "user.passwd", name="root", password=PASSWORD + "!")


async def test_gives_a_user_a_lasting_password_by_a_token_that_ends(callers: Callers) -> None:
    for mechanism in (Mechanism.OAUTHBEARER, Mechanism.CERTIFICATE):
        by_token = principal("root", "admins", mechanism=mechanism)
        await callers.access("root", {"cluster": {"admin": "u:root & !g:admins"}})
        await callers.refused(by_token, "user.passwd", name="root", password=PASSWORD + "!")


async def test_gets_an_account_back_by_a_session_from_before_its_password_was_changed(callers: Callers) -> None:
    session = await callers.logged_in("bob")
    await callers.call("root", "user.passwd", name="bob", password=PASSWORD + "!")
    error = await callers.refused(session, "user.passwd", name="bob", password=PASSWORD)
    assert "a new password since this session began" in str(error)
    await callers.call("bob", "user.passwd", name="bob", password=PASSWORD)  # with the new password it works


async def test_gets_the_account_of_somebody_who_was_given_his_name_after_him(callers: Callers) -> None:
    session = await callers.logged_in("bob")
    await callers.call("root", "user.delete", name="bob")
    await callers.call("root", "user.create", name="bob", password=PASSWORD)
    await callers.refused(session, "user.passwd", name="bob", password=PASSWORD + "!")


async def test_has_nodes_read_their_files_for_a_link(callers: Callers) -> None:
    files = {
        "ssl.ca.location": "/etc/shadow",
        "ssl.truststore.location": "/dev/zero",
        "ssl.keystore.location": "/var/lib/headrace/peer-tls/tls.crt",
        "ssl.certificate.location": "/nowhere",
    }
    for name, path in files.items():
        given = {"security.protocol": "SSL", name: path}
        asked = {"stream": "/plant/flow", "source": ["127.0.0.1:1"], "source_stream": "/s", "credentials": given}
        error = await callers.refused("bob", "link.create", **asked)
        assert str(error).startswith(
            f"{name}: only administrators of the cluster may have links use files of the nodes"
        )
        assert not (await callers.fails("root", "link.create", **asked)).is_forbidden
        asked = {"name": "hidden", "credentials": given}
        await callers.access("root", {"/secret": {"admin": "u:bob"}})
        assert "may have links use files of the nodes" in str(await callers.refused("bob", "link.alter", **asked))


async def test_calls_himself_by_no_name_and_sets_the_password_of_nobody(callers: Callers) -> None:
    await callers.refused("", "user.passwd", name="ANONYMOUS", password=PASSWORD)
    await callers.refused("", "user.show", name="ANONYMOUS")


async def test_makes_a_user_whom_an_expression_names_already(callers: Callers) -> None:
    await callers.access("root", {"/secret": {"consume": "u:gone"}})
    await callers.refused("mallory", "user.create", name="gone", password=PASSWORD)


async def test_finds_out_which_users_there_are(callers: Callers) -> None:
    one = await callers.refused("mallory", "user.show", name="root")
    other = await callers.refused("mallory", "user.show", name="nobody-of-this-name")
    assert str(one) == str(other)
    await callers.refused("mallory", "user.list")
    await callers.refused("mallory", "access.explain", user="root", object="/secret")


async def test_finds_out_the_groups_of_users_by_asking_what_they_may(callers: Callers) -> None:
    await callers.call("root", "user.alter", name="ann", groups=["ops", "payroll"])
    await callers.access("root", {"/plant/flow": {"consume": "g:ops"}})
    asked = {"user": "ann", "object": "/plant/flow"}
    groups = {each["permission"]: each["groups"] for each in await callers.call("bob", "access.explain", **asked)}
    assert groups.pop("consume") == ["ops"], "by which she may"
    assert set(map(tuple, groups.values())) == {()}
    (told,) = await callers.call("root", "access.explain", permission="produce", **asked)
    assert told["groups"] == ["ops", "payroll"]


async def test_finds_out_which_streams_topics_and_links_there_are(callers: Callers) -> None:
    for method, there, not_there in (
        ("stream.show", {"path": "/secret"}, {"path": "/nowhere"}),
        ("stream.alter", {"path": "/secret", "changes": {}}, {"path": "/nowhere", "changes": {}}),
        ("topic.show", {"topic": "/secret:t"}, {"topic": "/secret:nothing"}),
        ("link.show", {"name": "hidden"}, {"name": "nothing"}),
        ("link.hello", {"version": 1, "stream": "/secret"}, {"version": 1, "stream": "/nowhere"}),
    ):
        one = str(await callers.refused("mallory", method, **there))
        other = str(await callers.refused("mallory", method, **not_there))
        for name in there.values():
            one = one.replace(str(name), "NAME")
        for name in not_there.values():
            other = other.replace(str(name), "NAME")
        assert one == other
    assert await callers.call("mallory", "topic.list", stream="/secret") == []
    assert await callers.call("mallory", "topic.list", stream="/nowhere") == []


async def test_lists_and_sees_nothing_of_others(callers: Callers) -> None:
    assert [each["path"] for each in await callers.call("bob", "stream.list")] == ["/plant/flow"]
    assert await callers.call("bob", "link.list") == []
    assert [each["object"] for each in await callers.call("bob", "access.list")] == ["/plant/flow"]


async def test_takes_over_a_link_of_others_for_its_credentials(callers: Callers) -> None:
    for method in ("link.alter", "link.pause", "link.delete", "link.adopt"):
        await callers.refused("bob", method, name="hidden")
    await callers.refused("bob", "link.alter", name="hidden", source=["10.0.0.7:9092"], credentials={})


async def test_makes_a_link_into_a_stream_of_others_to_write_there(callers: Callers) -> None:
    params = {"source": ["127.0.0.1:1"], "source_stream": "/mine"}
    await callers.refused("bob", "link.create", stream="/secret", **params)
    await callers.refused("bob", "link.create", stream="/new", **params)


async def test_finds_out_into_which_stream_a_link_of_others_goes_by_its_name(callers: Callers) -> None:
    params = {"name": "hidden", "source": ["127.0.0.1:1"], "source_stream": "/s", "stream": "/plant/flow"}
    error = await callers.fails("bob", "link.create", **params)
    assert str(error) == "there is a link hidden already, on a stream that you do not administer: choose another name"


async def test_makes_a_stream_outside_of_his_path(callers: Callers) -> None:
    await callers.refused("ann", "stream.create", path="/plantation")
    await callers.refused("bob", "stream.create", path="/plant/flow/more")
    made = await callers.call("ann", "stream.create", path="/plant/more")
    assert made["path"] == "/plant/more"


async def test_learns_of_a_stream_of_others_by_making_it_if_it_does_not_exist(callers: Callers) -> None:
    assert (await callers.fails("ann", "stream.create", path="/plant/flow")).code == Code.TOPIC_ALREADY_EXISTS
    await callers.refused("ann", "stream.create", path="/plant/flow", if_not_exists=True)
    await callers.refused("mallory", "stream.create", path="/plant/flow", if_not_exists=True)


async def test_makes_a_stream_among_those_of_the_cluster(callers: Callers) -> None:
    await callers.refused("mallory", "stream.create", path="/system/audit")
    error = await callers.fails("root", "stream.create", path="/system/audit")
    assert error.code == Code.POLICY_VIOLATION


async def test_takes_a_home_away(callers: Callers) -> None:
    topic_id = await id_of(callers, "/secret:t")
    own = await id_of(callers, "/plant/flow:t")
    await callers.refused("mallory", "home.cede", version=1, topic_ids=[topic_id], to="evil")
    await callers.refused("bob", "home.cede", version=1, topic_ids=[own, topic_id], to="evil")
    await callers.refused("bob", "home.cede", version=1, topic_ids=[bytes(16)], to="evil")
    await callers.refused("bob", "home.move", stream="/secret", force=True)


async def test_announces_a_home_from_a_cluster_that_is_no_peer(callers: Callers) -> None:
    topic_id = await id_of(callers, "/plant/flow:t")
    item = [topic_id, [7, "evil"], callers.parts.node.cluster_id, {0: []}]
    asked = {"version": 1, "stream": "/plant/flow", "items": [item], "cluster": "evil", "bootstrap": ["10.0.0.7:9092"]}
    await callers.refused("mallory", "link.announce", **asked)
    for who in ("bob", "root"):
        error = await callers.fails(who, "link.announce", **asked)
        assert error.code == Code.POLICY_VIOLATION
        assert "no peer" in str(error)
    links = await callers.call("root", "link.list")
    assert [each["name"] for each in links] == ["hidden"]
    assert "home" not in await callers.call("root", "topic.show", topic="/plant/flow:t")


async def test_announces_by_a_link_of_another_stream(callers: Callers) -> None:
    topic_id = await id_of(callers, "/plant/flow:t")
    item = [topic_id, [7, "far"], callers.parts.node.cluster_id, {0: []}]
    asked = {"version": 1, "stream": "/plant/flow", "items": [item], "cluster": "far", "source_stream": "/s"}
    assert (await callers.fails("bob", "link.announce", **asked)).code == Code.POLICY_VIOLATION


async def test_reads_a_topic_by_its_id_as_a_link_would(callers: Callers) -> None:
    topic_id = await id_of(callers, "/secret:t")
    (one, other) = (await callers.call("mallory", "link.meet", version=1, partitions=[[topic_id, 0], [bytes(16), 0]]))[
        "partitions"
    ]
    assert one["error"] == other["error"] == Code.UNKNOWN_TOPIC_ID
    assert one["message"].replace(topic_id.hex(), "") == other["message"].replace(bytes(16).hex(), "")
    await callers.refused("mallory", "link.cursors", version=1, stream="/secret")
    await callers.refused("mallory", "link.changes", version=1, stream="/secret")


async def test_copies_a_topic_that_is_shut_within_a_stream_that_he_may_copy(callers: Callers) -> None:
    await callers.access("root", {"/secret": {"copy": "u:bob"}, "/secret:t": {"copy": ""}})
    page = await callers.call("bob", "link.topics", version=1, stream="/secret")
    assert page["topics"] == []
    topic_id = await id_of(callers, "/secret:t")
    (met,) = (await callers.call("bob", "link.meet", version=1, partitions=[[topic_id, 0]]))["partitions"]
    assert met["error"] == Code.UNKNOWN_TOPIC_ID


async def test_turns_security_off(callers: Callers) -> None:
    for who in ("mallory", "ann", "bob", ""):
        await callers.refused(who, "security.off", open_everything=True)


async def test_keeps_a_right_that_was_taken_away(callers: Callers) -> None:
    await callers.call("bob", "stream.alter", path="/plant/flow", changes={})
    await callers.access("root", {"/plant/flow": {"admin": None}})
    await callers.refused("bob", "stream.alter", path="/plant/flow", changes={})


async def test_keeps_the_rights_of_a_stream_that_was_made_again(callers: Callers) -> None:
    await callers.call("root", "stream.delete", path="/plant/flow", force=True)
    await callers.call("root", "stream.create", path="/plant/flow")
    await callers.refused("bob", "stream.show", path="/plant/flow")


async def test_fills_the_memory_with_names_that_are_remembered(callers: Callers) -> None:
    for method, name in (("stream.show", "path"), ("groups.show", "group"), ("topic.show", "topic")):
        await callers.refused("mallory", method, **{name: "x" * 100_000})


async def test_forges_a_line_of_the_log_by_a_name(callers: Callers) -> None:
    error = await callers.refused("mallory", "stream.show", path="/a\naudit user=root allowed=True")
    assert "\n" not in str(error)


async def test_takes_a_node_or_a_volume_away(callers: Callers) -> None:
    await callers.refused("ann", "node.remove", node=1, force=True)
    await callers.refused("ann", "node.drain", node=1)
    await callers.refused("ann", "volume.alter", name="default", replicas=1)
    await callers.refused("ann", "container.recover", container=1, node=1, epoch=1)
    await callers.refused("ann", "features.hold", level=2)


async def test_sees_the_rest_of_a_stream_of_which_he_may_read_one_topic(callers: Callers) -> None:
    await create(callers.asks("root"), "/secret:open")
    await callers.access("root", {"/secret:open": {"consume": "u:mallory"}})
    assert [each["name"] for each in await callers.call("mallory", "topic.list", stream="/secret")] == ["open"]
    assert [each["path"] for each in await callers.call("mallory", "stream.list")] == ["/secret"]
    assert (await callers.call("mallory", "stream.show", path="/secret"))["path"] == "/secret"
    await callers.refused("mallory", "topic.show", topic="/secret:t")
    await callers.refused("mallory", "link.topics", version=1, stream="/secret")


async def test_waits_for_changes_until_his_right_is_gone(callers: Callers) -> None:
    await callers.access("root", {"/secret": {"copy": "u:mallory"}})
    asked = {"version": 1, "stream": "/secret", "topics": True}
    place = await callers.call("mallory", "link.changes", **asked)
    since = [place["run"], place["serial"]]
    waiting = asyncio.ensure_future(callers.refused("mallory", "link.changes", since=since, wait_ms=20_000, **asked))
    await until(lambda: any(each.waiting for each in callers.parts.changes._by_path.values()))
    await callers.access("root", {"/secret": {"copy": None}})
    await create(callers.asks("root"), "/secret:news")
    await waiting


async def test_hears_of_changes_of_a_topic_that_is_shut_within_a_stream_that_he_may_copy(callers: Callers) -> None:
    await callers.access("root", {"/secret": {"copy": "u:bob"}, "/secret:t": {"copy": ""}})
    asked = {"version": 1, "stream": "/secret", "topics": True}
    place = await callers.call("bob", "link.changes", **asked)
    hidden = await id_of(callers, "/secret:t")
    await callers.asks("root")(
        ApiKey.CREATE_PARTITIONS, 2, {"topics": [{"name": "/secret:t", "count": 2}], "timeout": 5_000}
    )
    shown = await create(callers.asks("root"), "/secret:news")
    heard: set[bytes] = set()
    while shown not in heard:
        since = [place["run"], place["serial"]]
        place = await callers.call("bob", "link.changes", since=since, wait_ms=5_000, **asked)
        heard |= set(place["topics"]) | {each[0] for each in place["partitions"]}
    assert hidden not in heard
