"""User-provided certificates and authorities: applied, and when missing never opening anything."""

from typing import Any

import pytest

from headrace.security.certificate_authority import Authority
from headrace_operator.builders import authorities, trust
from headrace_operator.builders.authorities import decoded
from headrace_operator.kinds import cluster_security

from ..fake_cluster import NS, World
from .test_cluster_security import KEY, ON, later

COMPANY = Authority.create("company", days=3650, now=cluster_security.time.time()).pair
OTHER = Authority.create("other", days=3650, now=cluster_security.time.time()).pair


def spec(**client_ca: Any) -> dict[str, Any]:
    named = client_ca or {"secretRef": {"name": "company"}}
    more = {"name": "machines", "port": 9300, "protocol": "SSL", "clientCa": named}
    return {"nodes": 3, "security": ON, "listeners": {"additional": [more]}}


def give(world: World, text: str, *, kind: str = "Secret", key: str = "ca.crt") -> None:
    data = authorities.encoded({key: text}) if kind == "Secret" else {key: text}
    world.api.put({"apiVersion": "v1", "kind": kind, "metadata": {"name": "company", "namespace": NS}, "data": data})


def trusted(world: World, entry: str = "clients-ca-machines.crt") -> str:
    return decoded(world.api.one("Secret", "c-server"))[entry]


def condition(world: World) -> tuple[str, str, str]:
    found = world.condition("StreamCluster", "c", "Certificates")
    return found[0], found[1], found[2]


@pytest.fixture
async def given() -> World:
    """A cluster with a listener for certificates of a company."""
    world = World()
    world.cluster.levels = {**(world.cluster.levels or {}), "level": 2, "supported_by_all": 2}
    give(world, COMPANY.certificate + COMPANY.key)
    world.declare("StreamCluster", "c", spec())
    await world.run(KEY)
    return world


async def test_given_authorities_are_trusted_in_place_of_the_clusters_own(given: World) -> None:
    assert condition(given)[:2] == ("True", "Valid")
    assert trusted(given) == COMPANY.certificate
    assert COMPANY.key not in str(given.api.one("ConfigMap", "c-listeners"))
    assert COMPANY.key not in decoded(given.api.one("Secret", "c-server")).values()
    own = decoded(given.api.one("Secret", "c-clients-ca"))["ca.crt"]
    given.declare("StreamCluster", "c", spec(secretRef={"name": "company"}, includeClusterCa=True))
    await given.run(KEY)
    assert trusted(given) == COMPANY.certificate + own


async def test_another_authority_reaches_pods_that_run_on(given: World) -> None:
    def marks() -> set[str]:
        return {pod["metadata"]["annotations"]["headrace.dev/certificates"] for pod in given.api.find("Pod")}

    pods, before = [pod["metadata"]["uid"] for pod in given.api.find("Pod")], marks()
    give(given, COMPANY.certificate + OTHER.certificate)
    await given.run(KEY)
    assert trusted(given) == COMPANY.certificate + OTHER.certificate
    give(given, OTHER.certificate)
    await given.run(KEY)
    assert trusted(given) == OTHER.certificate
    assert marks().isdisjoint(before), "the kubelet is made to look"
    assert pods == [pod["metadata"]["uid"] for pod in given.api.find("Pod")]


@pytest.mark.parametrize(
    ("text", "reason"), [(None, "NoAuthority"), ("no PEM", "AuthorityUnfit"), ("", "AuthorityUnfit")]
)
async def test_what_is_gone_or_unfit_leaves_what_was(given: World, text: str | None, reason: str) -> None:
    if text is None:
        given.api.remove("Secret", "company")
    else:
        give(given, text)
    given.start_operator()
    await given.run(KEY)
    state, said, message = condition(given)
    assert (state, said) == ("False", reason)
    assert message.startswith("listener machines, clientCa: Secret company, entry ca.crt ")
    assert message.endswith("the former authorities stay in use")
    assert trusted(given) == COMPANY.certificate
    assert given.condition("StreamCluster", "c", "Secured")[:2] == ("True", "Secured")
    give(given, OTHER.certificate)
    await given.run(KEY)
    assert condition(given)[1] == "Valid"
    assert trusted(given) == OTHER.certificate


@pytest.mark.parametrize("own_too", [False, True])
async def test_where_nothing_was_given_yet_nobody_of_others_is_let_in(own_too: bool) -> None:
    world = World()
    world.declare("StreamCluster", "c", spec(configMapRef={"name": "company"}, includeClusterCa=own_too))
    await world.run(KEY)
    state, reason, message = condition(world)
    assert (state, reason) == ("False", "NoAuthority")
    assert message.endswith(
        "ConfigMap company, entry ca.crt does not exist: create it, or name another; "
        "no certificate is trusted until then"
    )
    first, own = trusted(world), decoded(world.api.one("Secret", "c-clients-ca"))["ca.crt"]
    assert trust.is_nobody(first)
    assert first.endswith(own) is own_too
    await world.run(KEY)
    assert trusted(world) == first, "nothing is written while nothing changes"
    give(world, COMPANY.certificate, kind="ConfigMap")
    await world.run(KEY)
    assert condition(world)[1] == "Valid"
    assert trusted(world) == COMPANY.certificate + (own if own_too else "")


async def test_too_much_is_refused_and_what_was_stays(given: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "MAX_BYTES", len(COMPANY.certificate) + 1)
    give(given, COMPANY.certificate + OTHER.certificate)
    await given.run(KEY)
    assert condition(given)[1] == "AuthorityUnfit"
    assert trusted(given) == COMPANY.certificate


async def test_an_authority_that_ends_is_told_of_in_time(given: World, monkeypatch: pytest.MonkeyPatch) -> None:
    now = cluster_security.time.time()
    give(given, COMPANY.certificate)
    for days, reason in ((3640, "CertificateExpires"), (15, "CertificateExpired")):
        later(given, monkeypatch, days * 86_400.0)
        await given.once(KEY)
        assert condition(given)[1] == reason
    assert cluster_security.time.time() > now


async def test_the_issuers_authorities_are_passed_on(given: World) -> None:
    oauth = {
        "jwksUrl": "https://i/k",
        "issuer": "i",
        "audience": ["a"],
        "jwksCa": {"configMapRef": {"name": "company"}},
    }
    listeners = {"additional": [{"name": "tokens", "port": 9300, "mechanisms": ["OAUTHBEARER"], "oauth": oauth}]}
    given.declare("StreamCluster", "c", {"nodes": 3, "security": ON, "listeners": listeners})
    await given.run(KEY)
    assert condition(given)[1] == "NoAuthority"
    assert trust.is_nobody(trusted(given, "jwks-ca-tokens.crt"))
    give(given, OTHER.certificate, kind="ConfigMap")
    await given.run(KEY)
    assert condition(given)[1] == "Valid"
    assert trusted(given, "jwks-ca-tokens.crt") == OTHER.certificate
    assert "clients-ca-machines.crt" not in decoded(given.api.one("Secret", "c-server"))


async def test_what_is_wrong_now_is_told_before_what_will_be(given: World, monkeypatch: pytest.MonkeyPatch) -> None:
    more = spec()["listeners"]["additional"][0]
    both = [more, {**more, "name": "others", "port": 9301, "clientCa": {"secretRef": {"name": "missing"}}}]
    given.declare("StreamCluster", "c", {**spec(), "listeners": {"additional": both}})
    later(given, monkeypatch, 3640 * 86_400.0)
    await given.once(KEY)
    _, reason, message = condition(given)
    assert reason == "NoAuthority"
    assert message.endswith("(and 1 more)")


async def test_listeners_that_nodes_would_not_start_with_are_not_rolled_out(given: World) -> None:
    before = given.api.one("ConfigMap", "c-listeners")["data"]
    more = spec()["listeners"]["additional"][0]
    bad = {"additional": [{**more, "principalMappingRules": "RULE:(/x/"}]}
    given.declare("StreamCluster", "c", {**spec(), "listeners": bad})
    await given.run(KEY)
    state, reason, message = given.condition("StreamCluster", "c", "Reconciled")
    assert (state, reason) == ("False", "WrongListeners")
    assert "listener machines" in message
    assert given.api.one("ConfigMap", "c-listeners")["data"] == before
