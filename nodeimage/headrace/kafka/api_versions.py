"""ApiVersions: tells a client which APIs there are, in which versions.

A version of ApiVersions itself that is not spoken here is answered in version 0, with error UNSUPPORTED_VERSION and the
ranges, so that the client can ask again (KIP-511).
"""

from collections.abc import Iterable, Sequence
from typing import Final

from headrace.base.errors import Code
from headrace.base.levels import FEATURE, NEWEST, OLDEST
from headrace.base.runtime import Runtime
from headrace.kafka.api import Api, RawApi
from headrace.kafka.connection import Connection, Slot
from headrace.store.view import ClusterView
from headrace.wire import generic_codec
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.api_versions import Finalized, encode_response
from headrace.wire.header import RequestHeader

VERSIONS: Final = Versions(0, 4)
_NAMED_FROM: Final = 3
"""From this version on clients name themselves."""


class ApiVersionsApi:
    """Answers ApiVersions."""

    def __init__(self, *, runtime: Runtime, view: ClusterView, others: Iterable[Api | RawApi]) -> None:
        """`others`: what clients are told of beside ApiVersions."""
        self._runtime = runtime
        self._view = view
        self._told = tuple(sorted((api.key, api.versions) for api in (*others, *self.apis)))

    @property
    def apis(self) -> Sequence[RawApi]:
        """What is answered here."""
        return (RawApi(ApiKey.API_VERSIONS, VERSIONS, self.handle, answers_other_versions=True),)

    def handle(self, session: Connection, header: RequestHeader, request: memoryview, slot: Slot) -> None:
        """Answer, or park the connection until the request can be read. Raises `MalformedRequest`."""
        version = header.api_version
        if not VERSIONS.lowest <= version <= VERSIONS.highest:
            slot.failed(Code.UNSUPPORTED_VERSION)
            slot.answer([encode_response(0, self._told, error=Code.UNSUPPORTED_VERSION)])
            return
        if version >= _NAMED_FROM:
            if not generic_codec.is_prepared(ApiKey.API_VERSIONS, version):
                session.park(self._prepared(session, header, request, slot))
                return
            asked = generic_codec.decode_request(ApiKey.API_VERSIONS, version, request[header.body :])
            name = generic_codec.field(asked, "client_software_name", "")
            session.software = f"{name} {generic_codec.field(asked, 'client_software_version', '')}".strip()
        told = self._view.features
        slot.answer([encode_response(version, self._told, Finalized(FEATURE, told.level, OLDEST, NEWEST, told.epoch))])

    async def _prepared(self, session: Connection, header: RequestHeader, request: memoryview, slot: Slot) -> None:
        await self._runtime.loop.run_in_executor(
            self._runtime.executor, generic_codec.prepare, ApiKey.API_VERSIONS, header.api_version
        )
        self.handle(session, header, request, slot)
