"""TLS, versions and SASL of a new connection."""

import pytest

from headrace.base.errors import KafkaError
from headrace.kafka_client.client import ANY
from headrace.kafka_client.errors import SourceRefuses, SourceUnreachable
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.fetch import FetchRequest
from kit.certificates import Certificates
from kit.client_calls import ONE, QUICK, WITH_SASL, Connect, ask, echo, sasl, server_context
from kit.fake_kafka import FakeKafka


async def test_a_server_that_lacks_an_api_says_so(connect: Connect) -> None:
    async with FakeKafka(echo, versions={int(ApiKey.METADATA): (0, 12), int(ApiKey.FETCH): (4, 11)}) as server:
        client = connect(server)
        with pytest.raises(KafkaError, match="speaks FETCH in versions 4 to 11; 13 or later is needed"):
            await client.fetch(ONE, FetchRequest(0, 1, 1, 0, 0, -1, [], [], ""))
        with pytest.raises(KafkaError, match="speaks LIST_GROUPS not at all"):
            await client.ask(ANY, ApiKey.LIST_GROUPS, Versions(0, 5), {})


async def test_tls_with_a_known_authority_serves_large_answers_too(
    connect: Connect, certificates: Certificates
) -> None:
    async with FakeKafka(echo, context=server_context(certificates)) as server:
        client = connect(server, security_protocol="SSL", ssl_ca_pem=certificates.text("ca.pem"))
        assert (await ask(client, text="x" * 3_000_000))["text"] == "x" * 3_000_000


async def test_a_certificate_of_an_unknown_authority_is_refused(connect: Connect, certificates: Certificates) -> None:
    async with FakeKafka(echo, context=server_context(certificates)) as server:
        client = connect(server, security_protocol="SSL", ssl_ca_location=certificates.path("other-ca.pem"))
        with pytest.raises(SourceRefuses, match=f"127.0.0.1:{server.port} has a certificate that is not trusted"):
            await ask(client)


async def test_a_host_that_the_certificate_does_not_name_is_refused_unless_told_not_to_look(
    connect: Connect, certificates: Certificates
) -> None:
    async with FakeKafka(echo, context=server_context(certificates, name="stranger")) as server:
        trusting = {"security_protocol": "SSL", "ssl_ca_pem": certificates.text("ca.pem")}
        with pytest.raises(SourceRefuses, match="certificate that is not trusted: IP address mismatch"):
            await ask(connect(server, **trusting))
        assert await ask(connect(server, **trusting, ssl_endpoint_identification_algorithm=""), a=1)


async def test_a_client_without_a_certificate_is_refused_where_one_is_due(
    connect: Connect, certificates: Certificates
) -> None:
    async with FakeKafka(echo, context=server_context(certificates, client_authority="ca.pem")) as server:
        client = connect(server, security_protocol="SSL", ssl_ca_pem=certificates.text("ca.pem"))
        with pytest.raises((SourceRefuses, SourceUnreachable)) as refused:
            await ask(client)
        assert f"127.0.0.1:{server.port}" in str(refused.value)
        client = connect(
            server,
            security_protocol="SSL",
            ssl_ca_pem=certificates.text("ca.pem"),
            ssl_certificate_pem=certificates.text("client.pem"),
            ssl_key_pem=certificates.text("client.key"),
        )
        assert await ask(client, a=1)


async def test_tls_where_the_server_speaks_none_and_none_where_it_does(
    connect: Connect, certificates: Certificates
) -> None:
    async with FakeKafka(echo) as server:
        with pytest.raises((SourceRefuses, SourceUnreachable), match="TLS"):
            await connect(server, limits=QUICK, security_protocol="SSL").nodes()
    async with FakeKafka(echo, context=server_context(certificates)) as server:
        with pytest.raises(SourceUnreachable, match="TLS"):
            await connect(server, limits=QUICK).nodes()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_sasl_lets_in_who_knows_the_password_and_names_who_does_not(connect: Connect, mechanism: str) -> None:
    async with FakeKafka(sasl(mechanism, "s3cret"), versions=WITH_SASL) as server:
        known = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism, "sasl_username": "alice"}
        assert await ask(connect(server, sasl_password="s3cret", **known), a=1)
        with pytest.raises(SourceRefuses, match="'alice' is refused: bad secrets") as refused:
            await ask(connect(server, sasl_password="gue55", **known))
        assert "gue55" not in str(refused.value)


async def test_a_mechanism_that_the_server_lacks_is_answered_with_what_it_has(connect: Connect) -> None:
    async with FakeKafka(sasl("SCRAM-SHA-256", "x"), versions=WITH_SASL) as server:
        client = connect(
            server,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_username="alice",
            sasl_password="x",
        )
        with pytest.raises(SourceRefuses, match="does not accept PLAIN: it offers SCRAM-SHA-256"):
            await ask(client)
