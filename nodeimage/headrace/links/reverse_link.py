"""The reverse link of a link with `direction` both: the source's own link that pulls from this cluster. Admin calls to
the source create and change it.

A reverse link's credentials are those of a user of this cluster. They are sent to the source over this cluster's link,
and the source stores them as it does for its other links; this cluster neither stores nor shows them. While security is
on in this cluster, credentials must be given: without them the source would connect as ANONYMOUS.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headrace.base.addresses import parse_addresses
from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.catalog.link_config import LinkConfig
from headrace.kafka_client.client import ANY, Client
from headrace.kafka_client.errors import SourceUnreachable
from headrace.links.config import BOTH, unseal
from headrace.security.client_security import security_of

__all__ = ["ReverseLinks", "call_source"]

_anything: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder()


class ReverseLinks:
    """Creates and changes the reverse links of all links of this cluster."""

    def __init__(self, *, secret: str, is_secured: Callable[[], bool]) -> None:
        """`secret`: see Links. `is_secured`: whether security is on in this cluster."""
        self._secret = secret
        self._is_secured = is_secured

    def check(
        self,
        stream: str,
        config: LinkConfig,
        credentials: Mapping[str, str] | None,
        *,
        before: LinkConfig | None = None,
    ) -> None:
        """Check that the reverse link of a link into `stream` can have these credentials. Raises KafkaError.

        `credentials`: None if none were given, {} if the reverse link is to have none. `before`: the link's previous
        configuration.
        """
        if config.direction != BOTH:
            if credentials is not None:
                raise _wrong("credentials of a reverse link go with direction both")
            return
        if credentials is not None:
            try:
                security_of(credentials)
            except KafkaError as error:
                raise _wrong(f"the credentials of the reverse link: {error}") from None
        elif self._is_secured():
            known = before.bootstrap if before is not None and before.direction == BOTH else []
            if new := [each for each in config.bootstrap if each not in known]:
                raise KafkaError(
                    Code.INVALID_REQUEST,
                    f"security is on here, and the source will pull from here by {', '.join(new)}: give it the"
                    f" credentials of a user with `copy` on {stream}, by --reverse-credentials (of a ReplicationLink:"
                    " target.userRef or target.credentialsSecret)",
                )

    async def make(self, name: str, stream: str, config: LinkConfig, credentials: Mapping[str, str] | None) -> None:
        """Have the source create the reverse link, or keep an identical one. Raises KafkaError if the source
        refuses or does not answer."""
        await self._ask(
            config,
            "link.create",
            {
                "name": name,
                "source": list(config.bootstrap),
                "source_stream": stream,
                "stream": config.source_stream,
                "topics": list(config.topics),
                "credentials": dict(credentials or {}),
                "if_not_exists": True,
            },
        )

    async def change(
        self, name: str, before: LinkConfig, config: LinkConfig, credentials: Mapping[str, str] | None
    ) -> None:
        """Have the source change what differs from `before`. Raises KafkaError if the source refuses or does not
        answer."""
        changes: dict[str, Any] = {}
        if config.topics != before.topics:
            changes["topics"] = list(config.topics)
        if credentials is not None:
            changes["credentials"] = dict(credentials)
        if credentials is not None or config.bootstrap != before.bootstrap:
            changes["source"] = list(config.bootstrap)  # so that credentials go to no other address
        if changes:
            await self._ask(config, "link.alter", {"name": name, **changes})

    async def _ask(self, config: LinkConfig, method: str, params: Mapping[str, Any]) -> None:
        try:
            await call_source(config, method, params, secret=self._secret)
        except SourceUnreachable as error:
            raise KafkaError(
                error.code,
                "no link was made or changed here, and it is not known whether the source made or changed the link"
                f" that pulls from here, so repeat this: {error}",
            ) from error
        except HeadraceError as error:
            raise KafkaError(
                error.code, f"the source refuses the link that pulls from here, so no link was made or changed: {error}"
            ) from error


async def call_source(
    config: LinkConfig, method: str, params: Mapping[str, Any], *, secret: str, wait_ms: int = 0
) -> Any:
    """The result of an admin call at a link's source. Raises HeadraceError if the source refuses or cannot be
    reached."""
    security = security_of(unseal(config.credentials, secret))
    client = Client(parse_addresses(config.source), security=security)
    try:
        return await client.admin(ANY, method, params, _anything, wait_ms=wait_ms)
    finally:
        await client.close()


def _wrong(message: str) -> KafkaError:
    return KafkaError(Code.INVALID_CONFIG, message)
