"""Headrace's own admin calls (`admin.admin_api`), as an API beside Kafka's that ApiVersions does not report."""

from collections.abc import Sequence

from headrace.admin.admin_api import AdminApi
from headrace.kafka.api import RawApi
from headrace.kafka.connection import Connection, Slot
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.header import RequestHeader


class HeadraceAdminApi:
    """Answers Headrace's own admin calls."""

    def __init__(self, admin: AdminApi) -> None:
        self._admin = admin

    @property
    def apis(self) -> Sequence[RawApi]:
        """The APIs that this module answers."""
        return (RawApi(ApiKey.HEADRACE_ADMIN, Versions(0, 0), self.handle),)

    def handle(self, session: Connection, header: RequestHeader, request: memoryview, slot: Slot) -> None:
        """Park the connection until the call is answered."""
        session.park(self._answer(bytes(request[header.body :]), session, slot))

    async def _answer(self, body: bytes, session: Connection, slot: Slot) -> None:
        slot.answer([await self._admin.handle(body, session, failed=slot.failed)])
