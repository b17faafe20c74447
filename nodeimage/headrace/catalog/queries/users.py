"""Queries of users, their credentials, and quotas."""

import sqlite3

from headrace.catalog.queries.proofs import Proofs
from headrace.catalog.rows import CredentialRow, QuotaRow, UserRow
from headrace.catalog.selects import USER, select_user, user_row


class UserQueries:
    """Queries of users, credentials and quotas on one connection; used by one thread at a time."""

    def __init__(self, connection: sqlite3.Connection, proofs: Proofs) -> None:
        self._connection = connection
        self._proofs = proofs

    def named(self, name: str) -> UserRow | None:
        """The user of that name; None if there is none."""
        found = select_user(self._connection, name)
        if found is None:
            self._proofs.prove_absent("users", ("name",), [(name,)])
        return found

    def page(self, *, after: str = "", limit: int = -1) -> list[UserRow]:
        """A page of users after the name `after`, in order of name; `limit` -1 for all."""
        self._proofs.page_start("users", ("name",), (after,))
        rows = self._connection.execute(f"{USER} WHERE name > ? ORDER BY name LIMIT ?", (after, limit))
        return list(map(user_row, rows))

    def credential(self, user: str, mechanism: str) -> CredentialRow | None:
        """A user's credential for one mechanism; None if there is none."""
        row = self._connection.execute(
            "SELECT user, mechanism, salt, stored_key, server_key, iterations FROM credentials "
            "WHERE user = ? AND mechanism = ?",
            (user, mechanism),
        ).fetchone()
        if row is None:
            self._proofs.prove_absent("credentials", ("user", "mechanism"), [(user, mechanism)])
        return None if row is None else CredentialRow._make(row)

    def mechanisms(self, *, after: str = "") -> dict[str, dict[str, int]]:
        """By user, after the name `after`, the iterations of each mechanism for which the user has a credential. Scans
        all credentials of those users."""
        rows = self._connection.execute(
            "SELECT user, mechanism, iterations FROM credentials WHERE user > ? ORDER BY user, mechanism", (after,)
        )
        found: dict[str, dict[str, int]] = {}
        for user, mechanism, iterations in rows:
            found.setdefault(user, {})[mechanism] = iterations
        return found

    def quotas(self) -> list[QuotaRow]:
        """All quotas."""
        rows = self._connection.execute("SELECT entity, key, value FROM quotas ORDER BY entity, key")
        return [QuotaRow(entity, key, float(value)) for entity, key, value in rows]
