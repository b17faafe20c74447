"""What is measured with rights is measured with rights: the user may do what it needs, and nothing else."""

import ssl
from pathlib import Path

import pytest
from bench import wire
from bench.rights_scenarios import ACLS, TOPIC, restrict
from bench.servers import HeadraceServer, KafkaServer, Server
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

EVERY = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)


@pytest.mark.parametrize(
    "kind", [HeadraceServer, pytest.param(KafkaServer, marks=pytest.mark.java)], ids=["headrace", "kafka"]
)
def test_the_user_may_write_to_its_topic_alone(kind: type[HeadraceServer] | type[KafkaServer], tmp_path: Path) -> None:
    server: Server = kind(tmp_path / "server", tls=True, rights=True)
    batch = wire.record_batch([b"x"])
    try:
        server.start()
        restrict(server)
        user = server.certificates.user_context()
        with wire.Client(server.tls_bootstrap, tls=user) as client:
            client.produce({TOPIC: batch})
            with pytest.raises(wire.Refused, match="topic_authorization_failed"):
                client.produce({"other-0000": batch})
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        found = admin.describe_acls(EVERY).result(60.0)
        assert len({(each.restype, each.name, each.operation) for each in found if _is_direct(each)}) == ACLS
    finally:
        server.kill()


def _is_direct(acl: object) -> bool:
    """Whether an ACL was asked for: DESCRIBE is implied by the others, and Headrace shows it."""
    return getattr(acl, "operation", None) in (AclOperation.READ, AclOperation.WRITE)


@pytest.mark.parametrize("kind", [HeadraceServer, pytest.param(KafkaServer, marks=pytest.mark.java)])
def test_a_client_without_a_certificate_is_refused(
    kind: type[HeadraceServer] | type[KafkaServer], tmp_path: Path
) -> None:
    server: Server = kind(tmp_path / "server", tls=True, rights=True)
    try:
        server.start()
        context = ssl.create_default_context(cafile=str(server.certificates.authority))
        with pytest.raises((ssl.SSLError, ConnectionError)), wire.Client(server.tls_bootstrap, tls=context) as client:
            client.metadata(())
    finally:
        server.kill()
