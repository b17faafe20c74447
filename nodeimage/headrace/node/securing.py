"""Turning a cluster's security on (`--secure`), with its first administrator (`--bootstrap-admin`).

The order is: the administrator's credentials, the administrator's right, security. A crash in between leaves the
cluster as open as it was, and the next start continues; a cluster without an administrator is never secured. A step
that is already done is skipped, so that all nodes of a cluster may have the same options at every start.

The commands belong to feature level 2. A node with these options waits for that level before it serves any client:
until then it would serve clients openly.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final

import structlog

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import Millis
from headrace.base.levels import Level
from headrace.catalog.access import CLUSTER, AccessItem, SecureCluster, SetAccess
from headrace.catalog.catalog import Catalog
from headrace.catalog.command import CatalogCommand
from headrace.catalog.rows import AccessRow
from headrace.catalog.users import AlterCredentials, Credential
from headrace.node.bootstrap_admin import BootstrapAdmin
from headrace.security.access_expression import expression_of
from headrace.security.access_rules import Permission
from headrace.security.sasl.scram_credential import ScramCredential
from headrace.security.scram_common import HASHES

log = structlog.get_logger()

LOOK_S: Final = 0.2
"""Seconds between two looks at the cluster's feature level."""
TRIES: Final = 50
"""How often a command is tried: the catalog's leader may learn of the level a moment later than this node."""
WAITS_FOR: Final = (
    f"the cluster's feature level {int(Level.SECURED)}, which --secure and --bootstrap-admin need: once all nodes have "
    "this version, `headrace features upgrade` at another node, or at this one started without them"
)


class NoAdministrator(HeadraceError):
    """The cluster has no administrator, so nobody could change it once it is secure."""

    code = Code.INVALID_CONFIG


async def until_level(may: Callable[[Level], bool]) -> None:
    """Return once the cluster's feature level supports users and access expressions."""
    if may(Level.SECURED):
        return
    log.warning("waits before it serves clients", reason=WAITS_FOR)
    while not may(Level.SECURED):  # noqa: ASYNC110  # the view has no event for this, and it happens once
        await asyncio.sleep(LOOK_S)


async def ensure_admin(catalog: Catalog, admin: BootstrapAdmin, *, executor: Executor, now: Millis) -> None:
    """Create the user, if there is none of that name, and make it the administrator, if there is none. Raises
    KafkaError."""
    known, expressions = await catalog.query(
        lambda reader: (reader.users.named(admin.user), _admin_expressions(reader.access.all()))
    )
    if known is None:
        made = await asyncio.get_running_loop().run_in_executor(executor, partial(_credentials, admin))
        await _submit(catalog, AlterCredentials(deletions=[], upserts=made, now=now))
        log.info("administrator created", user=admin.user)
    if not expressions:
        text = expression_of(users=[admin.user]).text
        item = AccessItem(kind=CLUSTER, object="", permission=Permission.ADMIN.value, expression=text)
        none = [AccessItem(kind=CLUSTER, object="", permission=Permission.ADMIN.value, expression=None)]
        await _submit(catalog, SetAccess(items=[item], now=now, expected=none))  # no change if another node was first
        log.info("the cluster has an administrator", expression=text)


async def secure(catalog: Catalog) -> None:
    """Turn security on, if it is off. Raises NoAdministrator, KafkaError."""
    is_on, expressions = await catalog.query(
        lambda reader: (reader.access.is_secured(), _admin_expressions(reader.access.all()))
    )
    if is_on:
        return
    if not any(expressions):  # an empty expression admits nobody
        raise NoAdministrator(
            "--secure: the cluster has no administrator, so nobody could change anything; create one with "
            "--bootstrap-admin FILE"
        )
    await _submit(catalog, SecureCluster(on=True))
    log.warning("security is on: from now on clients may do only what access expressions allow")


async def _submit(catalog: Catalog, command: CatalogCommand[Any]) -> None:
    for _ in range(TRIES):
        try:
            await catalog.submit(command)
            return
        except KafkaError as error:
            if error.code is not Code.UNSUPPORTED_VERSION:
                raise
        await asyncio.sleep(LOOK_S)
    await catalog.submit(command)


def _admin_expressions(rows: list[AccessRow]) -> list[str]:
    """The expression that says who administers the cluster: one, or none."""
    return [row.expression for row in rows if row.kind == CLUSTER and row.permission == Permission.ADMIN]


def _credentials(admin: BootstrapAdmin) -> list[Credential]:
    """[blocking]"""
    made = [ScramCredential.made_of(admin.password, mechanism) for mechanism in HASHES]
    return [
        Credential(
            user=admin.user,
            mechanism=each.mechanism,
            salt=each.salt,
            stored_key=each.stored_key,
            server_key=each.server_key,
            iterations=each.iterations,
        )
        for each in made
    ]
