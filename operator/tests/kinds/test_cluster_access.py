"""What a cluster checks, and which operator's password it accepts, as its resource says."""

from headrace_operator.builders import operator_secret
from headrace_operator.builders.names import metadata
from headrace_operator.builders.operator_secret import Proofs

from ..fake_cluster import NS, World
from .test_cluster_security import KEY, ON, SPEC, force, held, is_forced, secure

__all__ = ["secure"]


async def test_the_operator_gets_another_password_which_the_cluster_has_first(secure: World) -> None:
    secure.cluster.users["headrace-operator"] = {"groups": [], "password": held(secure, "c-operator")["password"]}
    before = held(secure, "c-operator")["password"]
    force(secure, "c-operator")
    await secure.run(KEY)
    after = held(secure, "c-operator")
    assert after["password"] != before
    assert "next-password" not in after
    assert secure.cluster.users["headrace-operator"]["password"] == after["password"]
    assert not is_forced(secure, "c-operator")
    assert "CredentialsRenewed" in secure.events()
    assert [pod for pod in secure.api.find("Pod") if "PRIVATE" in str(pod)] == []


async def test_a_password_that_the_cluster_has_already_is_found_out(secure: World) -> None:
    """The operator ended between setting the password in the cluster and noting that it had."""
    secure.cluster.users["headrace-operator"] = {"groups": [], "password": "the next password"}
    old = held(secure, "c-operator")["password"]
    kept = metadata("c-operator", NS, "c", owned_by=None)
    await secure.kube.apply(operator_secret.secret(Proofs(old, "the next password"), metadata=kept))
    told = secure.cluster.asked

    def refuse(bootstrap: str) -> None:
        access = secure.routes.way(bootstrap).access
        secure.cluster.refuses_operator = "wrong password" if access and access.security.password == old else ""
        told(bootstrap)

    secure.cluster.asked = refuse
    await secure.run(KEY)
    assert held(secure, "c-operator")["password"] == "the next password"
    assert secure.condition("StreamCluster", "c")[0] == "True"


async def test_who_administers_stands_beside_the_operator(secure: World) -> None:
    for admin, then in (("g:ops & !u:bob", "u:headrace-operator | g:ops & !u:bob"), ("", "u:headrace-operator")):
        secure.declare("StreamCluster", "c", {**SPEC, "security": {**ON, "permissions": {"admin": admin}}})
        await secure.run(KEY)
        assert secure.cluster.expressions["cluster", "admin"] == then
    secure.declare("StreamCluster", "c", {**SPEC, "security": {**ON, "permissions": {"admin": "ops"}}})
    await secure.run(KEY)
    assert secure.condition("StreamCluster", "c", "Secured")[:2] == ("False", "Refused")
