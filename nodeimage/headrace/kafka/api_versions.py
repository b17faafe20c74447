"""ApiVersions: reports to a client which APIs the node answers, in which versions.

A request in an unsupported version of ApiVersions itself is answered in version 0, with error UNSUPPORTED_VERSION and
the supported ranges, so that the client can retry (KIP-511).
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
"""The first version in which clients send their software's name."""


class ApiVersionsApi:
    """Answers ApiVersions."""

    def __init__(self, *, runtime: Runtime, view: ClusterView, others: Iterable[Api | RawApi]) -> None:
        """`others`: the APIs that are reported besides ApiVersions."""
        self._runtime = runtime
        self._view = view
        self._ranges = tuple(sorted((api.key, api.versions) for api in (*others, *self.apis)))

    @property
    def apis(self) -> Sequence[RawApi]:
        """The APIs that this module answers."""
        return (RawApi(ApiKey.API_VERSIONS, VERSIONS, self.handle, answers_other_versions=True),)

    def handle(self, session: Connection, header: RequestHeader, request: memoryview, slot: Slot) -> None:
        """Answer, or park the connection until the codec of the request is prepared. Raises `MalformedRequest`."""
        version = header.api_version
        if not VERSIONS.lowest <= version <= VERSIONS.highest:
            slot.failed(Code.UNSUPPORTED_VERSION)
            slot.answer([encode_response(0, self._ranges, error=Code.UNSUPPORTED_VERSION)])
            return
        if version >= _NAMED_FROM:
            if not generic_codec.is_prepared(ApiKey.API_VERSIONS, version):
                session.park(self._prepare_and_handle(session, header, request, slot))
                return
            asked = generic_codec.decode_request(ApiKey.API_VERSIONS, version, request[header.body :])
            name = generic_codec.field(asked, "client_software_name", "")
            session.software = f"{name} {generic_codec.field(asked, 'client_software_version', '')}".strip()
        features = self._view.features
        slot.answer(
            [encode_response(version, self._ranges, Finalized(FEATURE, features.level, OLDEST, NEWEST, features.epoch))]
        )

    async def _prepare_and_handle(
        self, session: Connection, header: RequestHeader, request: memoryview, slot: Slot
    ) -> None:
        await self._runtime.loop.run_in_executor(
            self._runtime.executor, generic_codec.prepare, ApiKey.API_VERSIONS, header.api_version
        )
        self.handle(session, header, request, slot)
