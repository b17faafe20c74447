"""The rights that admin methods declare: the objects that they concern, and the text of refusals."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import msgspec
import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.runtime import Runtime
from headrace.partitions.access_control import AccessControl
from headrace.partitions.admin_rights import (
    ADMIN,
    ANY,
    CLUSTER_ADMIN,
    COPY,
    Anybody,
    On,
    Own,
    Right,
    Target,
    on_group,
    on_path,
    on_stream,
    on_topic,
    read_object,
    written,
)
from headrace.partitions.authorizer import Authorizer
from headrace.security.access_rules import AccessRules, Kind, Permission, Rule
from headrace.security.audit import AuditLog
from headrace.security.principals import Mechanism
from kit.access import Client, client, principal
from kit.catalog import Still

RULES = (
    Rule(Kind.CLUSTER, "", Permission.ADMIN, "u:root"),
    Rule(Kind.PREFIX, "/plant", Permission.ADMIN, "u:ann"),
    Rule(Kind.STREAM, "/plant/flow", Permission.ADMIN, "u:bob"),
    Rule(Kind.STREAM, "/plant/flow", Permission.COPY, "u:link"),
    Rule(Kind.TOPIC, "/plant/flow:t", Permission.CONSUME, "u:carol"),
    Rule(Kind.GROUP_PREFIX, "team-", Permission.CONSUME, "u:carol"),
)


class Given(msgspec.Struct):
    path: str = ""
    topic: str = ""
    group: str = ""
    name: str = ""


class Asked:
    """The audited events, and whether a right is granted."""

    def __init__(self, *, on: bool = True) -> None:
        self.told: list[Mapping[str, object]] = []
        runtime = Runtime(executor=ThreadPoolExecutor(1), clock=Still())
        access = AccessControl(runtime=runtime, catalog=cast(Any, None))
        access.rules = AccessRules.of(RULES, on=on)
        self.may = Authorizer(runtime=runtime, access=access, audit=AuditLog([self.told.append], monotonic=lambda: 1.0))

    async def refusal(self, user: str, right: Right, **given: str) -> KafkaError | None:
        caller = client(user)
        try:
            await right.check(Given(**given), caller, self.may, method="m")
        except KafkaError as error:
            return error
        return None

    async def allowed(self, user: str, right: Right, **given: str) -> bool:
        return await self.refusal(user, right, **given) is None


@pytest.fixture
async def asked() -> Asked:
    return Asked()


async def test_the_nearest_expression_decides_on_a_stream_and_a_prefix_on_one_to_be_made(asked: Asked) -> None:
    alter, make = on_stream(ADMIN), on_path(ADMIN)
    assert await asked.allowed("bob", alter, path="/plant/flow")
    assert not await asked.allowed("ann", alter, path="/plant/flow")
    assert await asked.allowed("ann", alter, path="/plant/other")
    assert await asked.allowed("ann", make, path="/plant/flow")
    assert not await asked.allowed("bob", make, path="/plant/flow")
    assert not await asked.allowed("ann", make, path="/plantation")
    assert await asked.allowed("root", make, path="/anywhere")


async def test_a_topic_is_one_thing_by_whichever_name(asked: Asked) -> None:
    for name in ("/plant/flow:t", "plant.flow..t"):
        assert await asked.allowed("carol", on_topic(ANY), topic=name)
        assert not await asked.allowed("ann", on_topic(ANY), topic=name)
    assert not await asked.allowed("carol", on_topic(ANY), topic="/plant/flow:other")


async def test_groups_go_by_the_beginning_of_their_names(asked: Asked) -> None:
    assert await asked.allowed("carol", on_group(ANY), group="team-1")
    assert await asked.allowed("carol", on_group(ANY), group="other"), "nothing is said of it, and she may consume"
    refused = await asked.refusal("ann", on_group(ANY), group="other")
    assert refused is not None
    assert refused.code is Code.GROUP_AUTHORIZATION_FAILED


async def test_a_refusal_has_kafkas_code_and_is_told_to_the_audit(asked: Asked) -> None:
    codes = {}
    for right, given in ((CLUSTER_ADMIN, {}), (on_stream(COPY), {"path": "/plant/flow"})):
        error = await asked.refusal("carol", right, **given)
        assert error is not None
        codes[error.code] = str(error)
    assert codes == {
        Code.CLUSTER_AUTHORIZATION_FAILED: (
            "User:carol lacks admin on the cluster; a user with admin there can grant it:"
            " `headrace access set cluster --admin EXPRESSION`"
        ),
        Code.TOPIC_AUTHORIZATION_FAILED: (
            "User:carol lacks copy on stream /plant/flow; a user with admin there can grant it:"
            " `headrace access set /plant/flow --copy EXPRESSION`"
        ),
    }
    assert [(each["action"], each["api"]) for each in asked.told] == [("admin", "m"), ("copy", "m")]


async def test_what_a_refusal_names_is_what_the_caller_said(asked: Asked) -> None:
    hidden = On(ADMIN, "the link", lambda _params, _caller: (Target(Kind.STREAM, "/plant/flow", "the link 'l'"),))
    unknown = On(ADMIN, "the link", lambda _params, _caller: (Target(Kind.STREAM, "", "the link 'l'"),))
    one, other = await asked.refusal("carol", hidden), await asked.refusal("carol", unknown)
    assert str(one) == str(other)
    assert "/plant/flow" not in str(one)
    assert await asked.allowed("root", unknown)
    lines = await asked.refusal("carol", on_stream(ADMIN), path="/a\nforged line")
    assert "\n" not in str(lines)


@pytest.mark.parametrize(
    ("right", "given"),
    [
        (on_topic(ANY), {"topic": "/plant/flow"}),
        (on_topic(ANY), {"topic": "a b"}),
        (on_stream(ANY), {"path": "/" + "x" * 2_000}),
    ],
)
async def test_what_is_wrong_with_a_name_is_told_to_who_has_the_right_somewhere(
    asked: Asked, right: Right, given: Mapping[str, str]
) -> None:
    told = await asked.refusal("bob", right, **given)
    assert told is not None
    assert told.code in (Code.INVALID_TOPIC_EXCEPTION, Code.INVALID_REQUEST)
    assert str(await asked.refusal("mallory", right, **given)) == "User:mallory may not call 'm' with these parameters"


async def test_somebody_himself_is_whom_a_password_proves(asked: Asked) -> None:
    own = Own("name")
    assert await asked.allowed("bob", own, name="bob")
    assert await asked.allowed("root", own, name="bob")
    assert not await asked.allowed("ann", own, name="bob")
    by_certificate = Client(principal("bob", mechanism=Mechanism.CERTIFICATE))
    with pytest.raises(KafkaError, match="lacks admin on the cluster"):
        await own.check(Given(name="bob"), by_certificate, asked.may, method="m")
    with pytest.raises(KafkaError):
        await own.check(Given(name="ANONYMOUS"), Client(), asked.may, method="m")


async def test_while_security_is_off_everybody_may_do_everything() -> None:
    asked = Asked(on=False)
    for right in (CLUSTER_ADMIN, on_stream(ADMIN), on_topic(ANY), Own("name"), Anybody("lists")):
        assert await asked.allowed("", right, path="/plant/flow", topic="no topic")
    assert asked.told == []


@pytest.mark.parametrize(
    "text",
    [
        *("cluster", "/plant", "/plant/*", "/plant/flow:t", "group:*", "group:team", "group:team-*"),
        *("group:a:b", "transactional-id:x", "transactional-id:x*"),
    ],
)
def test_objects_are_read_as_they_are_written(text: str) -> None:
    target = read_object(text)
    assert written(target.kind, target.name) == text


def test_rights_are_told_in_words() -> None:
    assert on_stream(ADMIN).words == "`admin` on the stream `path`"
    assert on_topic(ANY).words == "any permission on the topic `topic`"
    assert Anybody("lists what may be seen").words == "lists what may be seen"
