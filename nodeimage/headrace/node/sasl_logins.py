"""SASL at a node's listeners: a gate for each listener, and what the gates share.

PLAIN passwords are hashed in one low-priority thread, so that clients which connect all at once slow down nothing but
each other. A listener with OAUTHBEARER fetches its issuer's keys from the start; until they have arrived it refuses
tokens.
"""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.kafka.catalog_credentials import CatalogCredentials
from headrace.kafka.connection import Handler
from headrace.kafka.sasl_gate import SaslGate
from headrace.kafka.unproven_connections import UnprovenConnections
from headrace.node.client_listeners import ClientListener
from headrace.partitions.login_audit import LoginAudit
from headrace.security.sasl.mechanisms import Verifier, offered_mechanisms

NICE: Final = 5
"""Nice value of the thread that hashes passwords."""


class SaslLogins:
    """One node's SASL gates, from its start to its end."""

    def __init__(self, *, runtime: Runtime, catalog: Catalog, secret: str, handler: Handler, audit: LoginAudit) -> None:
        """`secret`: the cluster's secret. `handler` answers requests of clients that have authenticated."""
        self.unproven = UnprovenConnections(runtime.awake)
        self._runtime = runtime
        self._handler = handler
        self._audit = audit
        self._credentials = CatalogCredentials(catalog=catalog, secret=secret)
        self._hashing = ThreadPoolExecutor(1, thread_name_prefix="login", initializer=_give_way)

    def gate(self, listener: ClientListener) -> SaslGate:
        """The gate between a listener's connections and the handler. Raises KafkaError INVALID_CONFIG."""
        config = listener.config
        assert config.sasl is not None
        offered = offered_mechanisms(
            config.sasl.mechanisms,
            credentials=self._credentials,
            run_blocking=self._hashed,
            verifier=self._verifier(listener),
        )
        return SaslGate(
            self._handler,
            offered=offered,
            max_reauth_ms=config.sasl.max_reauth_ms,
            security_protocol=config.protocol.value,
            unproven=self.unproven,
            runtime=self._runtime,
            heard=self._audit.authenticated,
        )

    def close(self) -> None:
        """Stop hashing."""
        self._hashing.shutdown(cancel_futures=True)

    async def _hashed(self, function: Callable[[], frozenset[bytes]]) -> frozenset[bytes]:
        return await asyncio.get_running_loop().run_in_executor(self._hashing, function)

    def _verifier(self, listener: ClientListener) -> Verifier | None:
        """The verifier of tokens; None for a listener without OAUTHBEARER."""
        assert listener.config.sasl is not None
        settings = listener.config.sasl.oauth
        if settings is None:
            return None
        from headrace.security.sasl.jwks import KeySet  # cryptography, aiohttp: 10 MB that few nodes need
        from headrace.security.sasl.jwks_http import fetch_jwks
        from headrace.security.sasl.jwt import TokenVerifier

        url = settings.jwks_url
        keys = KeySet(lambda: fetch_jwks(url, context=listener.jwks_context()), clock_s=self._runtime.loop.time)
        self._runtime.spawn(keys.run())
        return TokenVerifier(settings, keys, now_s=time.time)


def _give_way() -> None:
    with contextlib.suppress(OSError):  # platforms without a priority per thread
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
