"""Every admin method is refused without its right while security is on, and none of them is forgotten."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.base.ids import Millis
from headrace.catalog.link_config import LinkConfig
from headrace.catalog.links import PutLink
from headrace.node.parts import NodeParts
from headrace.partitions.admin_rights import Anybody, Own
from headrace.security.access_rules import Permission
from headrace.security.principals import Mechanism
from kit.access import principal
from kit.admin_calls import create
from kit.callers import PASSWORD, Callers, Refusal

DOCUMENT = Path(__file__).parents[3] / "docs" / "security.md"
ID = bytes(range(16))
LINK = {"name": "l"}
CALLS: dict[str, dict[str, Any]] = {
    "access.explain": {"user": "root", "object": "/s"},
    "access.list": {},
    "access.set": {"items": [{"object": "/s", "permission": "produce", "expression": "u:mallory"}]},
    "access.show": {"object": "/s"},
    "balance": {},
    "chain": {"topic": "/s:t"},
    "cluster.events": {},
    "cluster.status": {},
    "container.list": {},
    "container.recover": {"container": 1},
    "features.hold": {"level": 1},
    "features.show": {},
    "features.upgrade": {"level": 99},
    "features.wait": {"wait_s": 60.0},
    "groups.list": {},
    "groups.show": {"group": "g"},
    "home.cede": {"version": 1, "topic_ids": [ID], "to": "north"},
    "home.move": {"stream": "/s"},
    "link.adopt": LINK,
    "link.alter": LINK,
    "link.announce": {"version": 1, "stream": "/s", "items": [], "cluster": "north"},
    "link.changes": {"version": 1, "stream": "/s"},
    "link.create": {"name": "m", "source": ["127.0.0.1:1"], "source_stream": "/s", "stream": "/s"},
    "link.cursors": {"version": 1, "stream": "/s"},
    "link.delete": LINK,
    "link.hello": {"version": 1, "stream": "/s"},
    "link.list": {},
    "link.meet": {"version": 1, "partitions": [[ID, 0]]},
    "link.pause": LINK,
    "link.resume": LINK,
    "link.show": LINK,
    "link.topics": {"version": 1, "stream": "/s"},
    "node.drain": {"node": 99},
    "node.list": {},
    "node.remove": {"node": 99},
    "node.settings": {},
    "roll": {"topic": "/s:t"},
    "scrub.start": {},
    "scrub.status": {},
    "security.off": {},
    "security.on": {},
    "security.show": {},
    "status": {},
    "stream.alter": {"path": "/s", "changes": {}},
    "stream.create": {"path": "/made"},
    "stream.delete": {"path": "/nowhere"},
    "stream.list": {},
    "stream.show": {"path": "/s"},
    "topic.list": {"stream": "/s"},
    "topic.show": {"topic": "/s:t"},
    "user.alter": {"name": "bob", "groups": []},
    "user.create": {"name": "eve", "password": PASSWORD},
    "user.delete": {"name": "nobody"},
    "user.list": {},
    "user.passwd": {"name": "bob", "password": PASSWORD},
    "user.show": {"name": "bob"},
    "volume.alter": {"name": "nothing"},
    "volume.create": {"name": "v", "replicas": 3},
    "volume.list": {},
    "volume.show": {"name": "default"},
}
"""A call of each method, with valid parameters."""


@pytest.fixture
async def callers(broker: NodeParts) -> Callers:
    callers = Callers(broker)
    await callers.call("", "stream.create", path="/s")
    await callers.call("", "user.create", name="bob", password=PASSWORD)
    await callers.secure()
    return callers


async def forbidden(
    callers: Callers, who: str, methods: Iterable[str], calls: Mapping[str, dict[str, Any]] = CALLS
) -> list[tuple[str, str]]:
    """The methods that are refused because a right is missing, with their messages."""
    found = []
    for name in methods:
        try:
            await callers.call(who, name, **calls[name])
        except Refusal as error:
            if error.is_forbidden:
                found.append((name, str(error)))
    return found


def test_the_document_has_the_table_of_methods(broker: NodeParts) -> None:
    text = DOCUMENT.read_text().partition("### What each admin method asks for")[2].partition("\n#")[0]
    shown = dict(re.findall(r"^\| `([a-z.]+)` \| (.+) \|$", text, re.MULTILINE))
    assert shown == {name: method.right.words for name, method in sorted(broker.admin.methods.items())}


def test_there_is_a_call_of_each_method(broker: NodeParts) -> None:
    assert sorted(CALLS) == sorted(broker.admin.methods)


@pytest.mark.parametrize("who", ["mallory", ""])
async def test_every_method_is_refused_without_its_right(callers: Callers, who: str) -> None:
    for name, method in callers.parts.admin.methods.items():
        if isinstance(method.right, Anybody):
            continue
        error = await callers.refused(who, name, **CALLS[name])
        assert f"User:{who or 'ANONYMOUS'} " in str(error), name
    assert await callers.call("root", "access.list") == [
        {"object": "cluster", "kind": "cluster", "permission": "admin", "expression": "u:root"}
    ]
    assert [each["path"] for each in await callers.call("root", "stream.list")] == ["/default", "/s"]
    assert [each["user"] for each in await callers.call("root", "user.list")] == ["bob", "root"]


async def test_methods_for_anybody_show_nothing_to_who_has_no_right(callers: Callers) -> None:
    for name, method in callers.parts.admin.methods.items():
        if not isinstance(method.right, Anybody):
            continue
        answer = await callers.call("mallory", name, **CALLS[name])
        if name == "link.meet":
            (each,) = answer["partitions"]
            assert each["error"], answer
        else:
            assert answer == [], name


async def test_an_administrator_of_the_cluster_may_call_every_method(callers: Callers) -> None:
    assert await forbidden(callers, "root", callers.parts.admin.methods) == []


async def test_a_right_on_one_stream_or_group_opens_what_it_is_for_and_no_more(
    callers: Callers, broker: NodeParts
) -> None:
    topic_id = await create(callers.asks("root"), "/s:t")
    config = LinkConfig(source=["127.0.0.1:1"], source_stream="/s", topics=["*"], source_cluster="north")
    await broker.catalog.submit(PutLink(name="l", stream="/s", config=config, now=Millis(0), create=True))
    calls = {
        **CALLS,
        "home.cede": {"version": 1, "topic_ids": [topic_id], "to": "north"},
        "stream.delete": {"path": "/s"},
    }
    everything = dict.fromkeys(map(str, Permission), "u:owner")
    await callers.access("root", {"/s": everything | {"copy": "u:copier"}, "group:g*": {"consume": "u:reader"}})
    seen = {"stream.show", "topic.show", "chain"}
    copied = {"link.changes", "link.cursors", "link.hello", "link.topics"}
    owned = {
        *("access.explain", "access.set", "access.show", "home.cede", "home.move", "roll"),
        *("stream.alter", "stream.delete", *(name for name in calls if name.startswith("link."))),
    }
    anybody = {name for name, method in broker.admin.methods.items() if isinstance(method.right, Anybody)}
    expected = {"copier": seen | copied, "reader": {"groups.show"}, "owner": (seen | owned) - copied}
    for who, may in expected.items():
        # Deletions come last, since the other methods use the same objects.
        order = sorted(broker.admin.methods, key=lambda name: ("delete" in name, name))
        refused = {name for name, _ in await forbidden(callers, who, order, calls)}
        assert broker.admin.methods.keys() - refused == may | anybody, who


async def test_nothing_is_refused_while_security_is_off(callers: Callers) -> None:
    await callers.call("root", "security.off", open_everything=True)
    assert await forbidden(callers, "", callers.parts.admin.methods.keys() - {"security.on"}) == []


async def test_a_users_own_methods_are_for_whom_a_password_proves(callers: Callers) -> None:
    own = [name for name, method in callers.parts.admin.methods.items() if isinstance(method.right, Own)]
    assert sorted(own) == ["user.passwd", "user.show"]
    for name in own:
        await callers.call("bob", name, **CALLS[name])
        for mechanism in (Mechanism.CERTIFICATE, Mechanism.OAUTHBEARER):
            await callers.refused(principal("bob", mechanism=mechanism), name, **CALLS[name])


async def test_unknown_methods_and_wrong_parameters_tell_nothing_to_who_has_no_right(callers: Callers) -> None:
    unknown = await callers.refused("mallory", "stream.destroy", path="/s")
    wrong = await callers.refused("mallory", "stream.alter", path=7)
    assert str(unknown) == "User:mallory may not call 'stream.destroy' with these parameters"
    assert str(wrong) == "User:mallory may not call 'stream.alter' with these parameters"
    assert "stream.delete" in str(await callers.fails("root", "stream.destroy"))
    assert "path" in str(await callers.fails("root", "stream.alter", path=7))


async def test_a_refusal_says_who_lacks_what_on_which_object_and_how_to_get_it(callers: Callers) -> None:
    error = await callers.refused("mallory", "stream.alter", path="/s", changes={})
    assert str(error) == (
        "User:mallory lacks admin on stream /s; a user with admin there can grant it:"
        " `headrace access set /s --admin EXPRESSION`"
    )
    same = await callers.refused("mallory", "stream.alter", path="/nowhere", changes={})
    assert str(same) == str(error).replace("/s", "/nowhere")
