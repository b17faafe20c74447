"""The states and kinds of containers, as spelled in their records (store.record_types)."""

from typing import Final

OPEN: Final = "open"
CLOSED: Final = "closed"
DELETED: Final = "deleted"
CATALOG: Final = "catalog"
DATA: Final = "data"
