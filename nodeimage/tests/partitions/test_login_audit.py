"""Logins in the audit: the fields of a failed one, and that successful ones are audited if that is configured."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from headrace.base.runtime import Runtime
from headrace.partitions.login_audit import LoginAudit
from headrace.security.audit import BURST, AuditLog
from headrace.security.sasl.exchange import Attempt
from headrace.security.sasl.outcome import Refusal
from kit.access import Client
from kit.catalog import NOW, Still

FAILED = Attempt("SCRAM-SHA-256", "alice", Refusal.WRONG_CREDENTIALS, is_renewal=False)
SUCCEEDED = Attempt("PLAIN", "alice", None, is_renewal=True)


def audited(*allowed: str) -> tuple[LoginAudit, list[Mapping[str, object]]]:
    told: list[Mapping[str, object]] = []
    audit = AuditLog([told.append], monotonic=lambda: 1.0, allowed=allowed)
    with ThreadPoolExecutor(1) as executor:
        return LoginAudit(runtime=Runtime(executor=executor, clock=Still()), audit=audit), told


async def test_a_failed_login_is_told_of_nobody_with_whom_it_claimed_to_be() -> None:
    logins, told = audited()
    logins.authenticated(Client(), FAILED)
    logins.authenticated(Client(), SUCCEEDED)
    assert (logins.refused, logins.succeeded) == ({"SCRAM-SHA-256": 1}, {"PLAIN": 1})
    assert told == [
        {
            "at_ms": int(NOW),
            "user": "ANONYMOUS",
            "address": "10.0.0.7",
            "listener": "external",
            "action": "login",
            "kind": "login",
            "name": "alice",
            "allowed": False,
            "reason": "by SCRAM-SHA-256: wrong user or password",
            "api": "SaslAuthenticate",
            "client_id": "app",
        }
    ]


async def test_a_successful_one_is_told_where_that_is_asked_for() -> None:
    logins, told = audited("login")
    logins.authenticated(Client(), SUCCEEDED)
    logins.authenticated(Client(), Attempt(None, None, Refusal.UNSUPPORTED_MECHANISM, is_renewal=False))
    assert [(each["user"], each["name"], each["allowed"], each["reason"]) for each in told] == [
        ("alice", "alice", True, "by PLAIN, again"),
        ("ANONYMOUS", "", False, "by no mechanism that is offered: a mechanism that is off or unknown"),
    ]


async def test_who_guesses_at_a_user_uses_up_his_own_allowance() -> None:
    logins, told = audited("login")
    for _ in range(2 * BURST):
        logins.authenticated(Client(), FAILED)
    assert len(told) == BURST
    logins.authenticated(Client(peer="10.0.0.8:1"), SUCCEEDED)
    logins.authenticated(Client(peer="10.0.0.9:1"), FAILED)
    assert len(told) == BURST + 2
