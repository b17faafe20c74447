"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554): the credentials with which users authenticate.

A client sends a salted password; only two keys derived from it are stored, from which neither the password nor the
salted password can be recovered. A user is created with the first credential, and remains without one when the last is
deleted.

All alterations of a user are checked first, and none is made if one of them is refused. All of them are in one command,
so that they are made together. A deletion of what was deleted concurrently refuses the user only if nothing else of the
user was altered.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.catalog.catalog import Catalog
from headrace.catalog.users import AlterCredentials, Credential
from headrace.kafka.api import Api
from headrace.kafka.common_refusals import NO_ERROR, administrator_refusal, excess_refusal
from headrace.kafka.connection import Connection
from headrace.partitions.authorizer import Authorizer
from headrace.partitions.lookups import look_up_all, now, refusal, submit_groups
from headrace.security.audit import Change
from headrace.security.principals import NameRefused, check_user_name
from headrace.security.sasl.scram_credential import MAX_ITERATIONS, ScramCredential
from headrace.security.scram_common import MIN_ITERATIONS
from headrace.wire.api_keys import ApiKey, Versions

MAX_ALTERATIONS: Final = 1000
"""Alterations in one request."""
_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""The mechanisms by Kafka's numbers."""
_NUMBERS: Final = {name: number for number, name in _MECHANISMS.items()}
_MAX_SHOWN: Final = 100
"""Characters of a client-chosen name that a message shows."""
_Alteration = tuple[str, str] | Credential
"""A deletion, by user and mechanism, or a credential to be created."""


class ScramCredentialApis:
    """Answers DescribeUserScramCredentials and AlterUserScramCredentials."""

    def __init__(self, *, catalog: Catalog, authorizer: Authorizer) -> None:
        self._catalog = catalog
        self._authorizer = authorizer

    @property
    def apis(self) -> Sequence[Api]:
        """The APIs that this module answers."""
        return (
            Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, Versions(0, 0), self.describe, has_long_answers=True),
            Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, Versions(0, 0), self.alter),
        )

    async def describe(self, request: Any, session: Connection) -> Mapping[str, object]:
        """DescribeUserScramCredentials: of the named users, or of all users that have credentials."""
        if refused := administrator_refusal(self._authorizer, session, api="DescribeUserScramCredentials"):
            return {**refused, "results": ()}
        try:
            if not request.users:
                every = await self._catalog.query(lambda reader: reader.users.mechanisms())
                return {**NO_ERROR, "results": [_shown(*each) for each in every.items()]}
            times = Counter(each.name for each in request.users)
            found = await look_up_all(self._catalog, times, lambda reader: reader.users.mechanisms())
        except HeadraceError as error:
            return {**refusal(error), "results": ()}
        return {
            **NO_ERROR,
            "results": [_described(name, times[name], found.get(name)) for name in times],
        }

    async def alter(self, request: Any, session: Connection) -> Mapping[str, object]:
        """AlterUserScramCredentials."""
        names = list(dict.fromkeys(each.name for each in (*request.deletions, *request.upsertions)))
        if refused_whole := (
            administrator_refusal(self._authorizer, session, api="AlterUserScramCredentials")
            or excess_refusal(
                len(request.deletions) + len(request.upsertions),
                most=MAX_ALTERATIONS,
                rule="alter at most {} credentials in one request",
            )
        ):
            return _results(names, dict.fromkeys(names, refused_whole))
        refused: dict[str, Mapping[str, object]] = {}
        upserts = _checked(request, refused)
        try:
            await self._check_deletions(request.deletions, refused)
            await self._submit(request.deletions, upserts, refused)
        except HeadraceError as error:
            refused = dict.fromkeys(names, refusal(error)) | refused
        for name in names:
            if name not in refused:
                self._authorizer.changed(
                    session, Change.USERS, "user", name, "credentials", api="AlterUserScramCredentials"
                )
        return _results(names, refused)

    async def _check_deletions(self, deletions: Sequence[Any], refused: dict[str, Mapping[str, object]]) -> None:
        """Refuse users that lack a credential that is to be deleted. Raises HeadraceError."""
        if not deletions:
            return
        wanted = {each.name for each in deletions}
        found = await look_up_all(self._catalog, wanted, lambda reader: reader.users.mechanisms())
        for each in deletions:
            known = found.get(each.name) or {}
            if isinstance(known, KafkaError):
                raise known
            if each.name not in refused and _MECHANISMS[each.mechanism] not in known:
                refused[each.name] = _missing(each.name)

    async def _submit(
        self, deletions: Sequence[Any], upserts: Sequence[Credential], refused: dict[str, Mapping[str, object]]
    ) -> None:
        """Submit the alterations of all users that are not refused, until a command fails; users that are not altered
        are added to `refused`."""
        wanted: dict[str, list[_Alteration]] = {}
        for each in deletions:
            if each.name not in refused:
                wanted.setdefault(each.name, []).append((each.name, _MECHANISMS[each.mechanism]))
        for upsert in upserts:
            if upsert.user not in refused:
                wanted.setdefault(upsert.user, []).append(upsert)

        def applied(users: Iterable[str], items: Sequence[_Alteration], codes: Sequence[Code]) -> None:
            deletions, upserts = _split(items)
            names = (*(name for name, _ in deletions), *(each.user for each in upserts))
            altered = {name for name, code in zip(names, codes, strict=True) if code is Code.NONE}
            for name in users:
                if name not in altered:  # all was deleted concurrently
                    refused[name] = _missing(name)

        for name, failure in (await submit_groups(self._catalog, wanted, _command, applied)).items():
            refused[name] = refusal(failure)


def _split(items: Sequence[_Alteration]) -> tuple[list[tuple[str, str]], list[Credential]]:
    """The deletions, and the credentials to be created: their outcomes have that order."""
    deletions = [each for each in items if isinstance(each, tuple)]
    return deletions, [each for each in items if isinstance(each, Credential)]


def _command(items: Sequence[_Alteration]) -> AlterCredentials:
    return AlterCredentials(*_split(items), now())


def _checked(request: Any, refused: dict[str, Mapping[str, object]]) -> list[Credential]:
    """The credentials to be created; the refusals of users are added to `refused`."""
    upserts: list[Credential] = []
    times = Counter((each.name, each.mechanism) for each in (*request.deletions, *request.upsertions))
    for each, is_upsert in (*_with(request.deletions, False), *_with(request.upsertions, True)):
        try:
            mechanism = _mechanism(each)
            if times[each.name, each.mechanism] > 1:
                raise KafkaError(
                    Code.DUPLICATE_RESOURCE,
                    f"{mechanism} of user {_short(each.name)} is altered more than once in this request",
                )
            if is_upsert:
                upserts.append(_credential(each, mechanism))
        except HeadraceError as error:
            refused.setdefault(each.name, refusal(error))
    return upserts


def _with(items: Iterable[Any], is_upsert: bool) -> list[tuple[Any, bool]]:
    return [(each, is_upsert) for each in items]


def _mechanism(each: Any) -> str:
    if not each.name:
        raise KafkaError(Code.UNACCEPTABLE_CREDENTIAL, "the user name is empty")
    if each.mechanism not in _MECHANISMS:
        offered = " and ".join(f"{name} ({number})" for number, name in _MECHANISMS.items())
        raise KafkaError(
            Code.UNSUPPORTED_SASL_MECHANISM, f"there is no SCRAM mechanism {each.mechanism}; known are {offered}"
        )
    return _MECHANISMS[each.mechanism]


def _credential(each: Any, mechanism: str) -> Credential:
    """The credential to store for an upsertion. Raises KafkaError, whose message never contains secret bytes."""
    try:
        check_user_name(each.name)
    except NameRefused as error:
        raise KafkaError(Code.UNACCEPTABLE_CREDENTIAL, str(error)) from None
    if not MIN_ITERATIONS <= each.iterations <= MAX_ITERATIONS:
        few = "few" if each.iterations < MIN_ITERATIONS else "many"
        raise KafkaError(
            Code.UNACCEPTABLE_CREDENTIAL,
            f"too {few} iterations ({each.iterations}); {MIN_ITERATIONS} to {MAX_ITERATIONS} are accepted",
        )
    credential = ScramCredential.from_salted_password(
        bytes(each.salted_password), mechanism=mechanism, iterations=each.iterations, salt=bytes(each.salt)
    )
    return Credential(
        each.name, mechanism, credential.salt, credential.stored_key, credential.server_key, credential.iterations
    )


def _described(name: str, times: int, mechanisms: Mapping[str, int] | KafkaError | None) -> Mapping[str, object]:
    if times > 1:
        twice = KafkaError(Code.DUPLICATE_RESOURCE, f"user {_short(name)} is named more than once in this request")
        return {"user": name, **refusal(twice)}
    if isinstance(mechanisms, KafkaError):
        return {"user": name, **refusal(mechanisms)}
    return _shown(name, mechanisms) if mechanisms else {"user": name, **_missing(name)}


def _shown(name: str, mechanisms: Mapping[str, int]) -> Mapping[str, object]:
    return {
        "user": name,
        **NO_ERROR,
        "credential_infos": [
            {"mechanism": _NUMBERS[mechanism], "iterations": iterations} for mechanism, iterations in mechanisms.items()
        ],
    }


def _missing(name: str) -> Mapping[str, object]:
    return refusal(KafkaError(Code.RESOURCE_NOT_FOUND, f"user {_short(name)} has no such credential"))


def _results(names: Iterable[str], refused: Mapping[str, Mapping[str, object]]) -> Mapping[str, object]:
    return {"results": [{"user": name, **refused.get(name, NO_ERROR)} for name in names]}


def _short(name: str) -> str:
    return repr(name[:_MAX_SHOWN])
