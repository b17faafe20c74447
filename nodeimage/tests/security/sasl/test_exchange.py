"""A connection's authentication as a whole: order, failures, lifetimes, re-authentication, and the audit's events."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import Code, KafkaError
from headrace.security.sasl.exchange import MAX_TOKEN_BYTES, Attempt, Done, Failed, Handshake, SaslExchange
from headrace.security.sasl.jwk import VerifyingKey
from headrace.security.sasl.jwks import keys_of
from headrace.security.sasl.jwt import TokenVerifier
from headrace.security.sasl.mechanisms import MECHANISMS, offered_mechanisms
from headrace.security.sasl.oauth_settings import OAuthSettings
from headrace.security.sasl.outcome import Accepted, Challenge, Proven, Refusal
from headrace.security.scram import ScramClient
from headrace.security.scram_common import HASHES
from kit.sasl import PASSWORD, Listener, MemoryCredentials, run_at_once
from kit.tokens import AUDIENCE, ISSUER, NOW_S, Issuer, bearer

WRONG = "a wrong password"
PLAIN_ALICE = f"\0alice\0{PASSWORD}".encode()
ALL = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def credentials() -> MemoryCredentials:
    made = MemoryCredentials()
    made.add("alice", *HASHES)
    made.add("bob", "SCRAM-SHA-512")
    return made


class Keys:
    """An issuer's keys, without a server."""

    def __init__(self, issuer: Issuer) -> None:
        self._keys = keys_of(issuer.key_set())

    async def keys(self, key_id: str) -> Sequence[VerifyingKey]:
        return self._keys.get(key_id, ())


def verifier(issuer: Issuer) -> TokenVerifier:
    settings = OAuthSettings(
        jwks_url="https://issuer.example/keys",
        issuer=ISSUER,
        audiences=frozenset({AUDIENCE}),
        groups_claim="groups",
    )
    return TokenVerifier(settings, Keys(issuer), now_s=lambda: NOW_S)


def begin(exchange: SaslExchange, mechanism: str, version: int = 1) -> None:
    assert exchange.handshake(mechanism, version).code is Code.NONE


async def scram(
    exchange: SaslExchange, user: str = "alice", password: str = PASSWORD, mechanism: str = "SCRAM-SHA-256"
) -> Done | Failed:
    """Authenticate from the handshake to the end, and check the server's proof."""
    begin(exchange, mechanism)
    client = ScramClient(mechanism, user, password)
    challenge = await exchange.step(client.first())
    assert isinstance(challenge, Challenge)
    answer = await exchange.step(client.final(challenge.token))
    assert isinstance(answer, Done | Failed)
    if isinstance(answer, Done):
        client.verify(answer.token)
    return answer


async def plain(exchange: SaslExchange, token: bytes = PLAIN_ALICE) -> Done | Failed:
    begin(exchange, "PLAIN")
    answer = await exchange.step(token)
    assert isinstance(answer, Done | Failed)
    return answer


async def oauth(exchange: SaslExchange, token: bytes) -> Done | Failed | Challenge:
    begin(exchange, "OAUTHBEARER")
    return await exchange.step(token)


# --- who gets in


@pytest.mark.parametrize("mechanism", HASHES)
async def test_scram_proves_both_sides(credentials: MemoryCredentials, mechanism: str) -> None:
    listener = Listener(credentials)
    exchange = listener.exchange()
    assert exchange.proven is None
    answer = await scram(exchange, mechanism=mechanism)
    assert isinstance(answer, Done)
    assert answer.proven == exchange.proven == Proven("alice")
    assert answer.lifetime_ms == 0
    assert listener.audit == [Attempt(mechanism, "alice", None, is_renewal=False)]


@pytest.mark.parametrize("user", ["alice", "bob"])
async def test_plain_is_checked_against_the_records_of_scram(credentials: MemoryCredentials, user: str) -> None:
    listener = Listener(credentials)
    answer = await plain(listener.exchange(), f"\0{user}\0{PASSWORD}".encode())
    assert isinstance(answer, Done)
    assert answer.proven == Proven(user)
    assert listener.audit == [Attempt("PLAIN", user, None, is_renewal=False)]


async def test_a_token_proves_user_groups_and_lifetime(credentials: MemoryCredentials, issuer: Issuer) -> None:
    listener = Listener(credentials, "OAUTHBEARER", verifier=verifier(issuer))
    token = bearer(issuer.token(groups=["ops"]), authorization_id="alice")
    answer = await oauth(listener.exchange(), token)
    assert isinstance(answer, Done)
    assert answer.proven == Proven("alice", frozenset({"ops"}), 600.0)
    assert answer.lifetime_ms == 600_000
    assert listener.audit == [Attempt("OAUTHBEARER", "alice", None, is_renewal=False)]


@pytest.mark.parametrize("user", ["ANONYMOUS", "*", " alice", "x" * 250])
async def test_a_token_for_a_name_that_no_user_has_proves_nobody(
    credentials: MemoryCredentials, issuer: Issuer, user: str
) -> None:
    listener = Listener(credentials, "OAUTHBEARER", verifier=verifier(issuer))
    exchange = listener.exchange()
    answer = await oauth(exchange, bearer(issuer.token(sub=user)))
    assert isinstance(answer, Failed)
    assert exchange.proven is None
    assert listener.refusals == [Refusal.ILLEGAL_NAME]


async def test_tokens_of_a_handshake_of_version_0_are_bare(credentials: MemoryCredentials) -> None:
    exchange = Listener(credentials).exchange()
    begin(exchange, "PLAIN", version=0)
    assert exchange.has_raw_tokens
    assert isinstance(await exchange.step(PLAIN_ALICE), Done)


# --- who does not


async def test_wrong_passwords_and_unknown_users_are_told_the_same(credentials: MemoryCredentials) -> None:
    listener = Listener(credentials)
    for mechanism in HASHES:
        exchanges = [listener.exchange() for _ in range(3)]
        answers = [
            await scram(exchanges[0], password=WRONG, mechanism=mechanism),
            await scram(exchanges[1], user="mallory", mechanism=mechanism),
            await scram(exchanges[2], user="bob", password=WRONG, mechanism=mechanism),
        ]
        said = Failed(Code.SASL_AUTHENTICATION_FAILED, f"authentication failed with mechanism {mechanism}")
        assert answers == [said] * 3
        assert all(exchange.proven is None for exchange in exchanges)
    texts = {await plain(listener.exchange(), f"\0{user}\0{WRONG}".encode()) for user in ("alice", "bob", "mallory")}
    assert texts == {Failed(Code.SASL_AUTHENTICATION_FAILED, "authentication failed with mechanism PLAIN")}
    assert set(listener.refusals) == {Refusal.WRONG_CREDENTIALS}
    assert [attempt.user for attempt in listener.audit[:3]] == ["alice", "mallory", "bob"]


async def test_known_and_unknown_users_are_looked_up_alike(credentials: MemoryCredentials) -> None:
    listener = Listener(credentials)
    looked_up = []
    for user in ("alice", "bob", "mallory"):
        credentials.looked_up.clear()
        await plain(listener.exchange(), f"\0{user}\0{WRONG}".encode())
        await scram(listener.exchange(), user=user, password=WRONG)
        looked_up.append([mechanism for _, mechanism in credentials.looked_up])
    assert looked_up[0] == looked_up[1] == looked_up[2] == [*HASHES, "SCRAM-SHA-256"]


async def test_a_token_that_does_not_count_is_told_so_before_the_failure(
    credentials: MemoryCredentials, issuer: Issuer
) -> None:
    listener = Listener(credentials, "OAUTHBEARER", verifier=verifier(issuer))
    for said in (b"\x01", b"", bearer(issuer.token())):  # even a valid token no longer helps
        exchange = listener.exchange()
        answer = await oauth(exchange, bearer(issuer.token(exp=NOW_S - 60)))
        assert isinstance(answer, Challenge)
        assert answer.token == b'{"status":"invalid_token"}'
        assert exchange.proven is None
        assert await exchange.step(said) == Failed(
            Code.SASL_AUTHENTICATION_FAILED, "authentication failed with mechanism OAUTHBEARER"
        )
    assert listener.audit == [Attempt("OAUTHBEARER", None, Refusal.EXPIRED, is_renewal=False)] * 3


async def test_a_refused_token_is_audited_when_the_client_goes_away_instead_of_answering(
    credentials: MemoryCredentials, issuer: Issuer
) -> None:
    listener = Listener(credentials, "OAUTHBEARER", verifier=verifier(issuer))
    exchange = listener.exchange()
    await oauth(exchange, bearer(issuer.token(aud="other")))
    exchange.close()
    exchange.close()
    assert listener.refusals == [Refusal.AUDIENCE]


async def test_an_authorization_id_that_is_not_the_principal_is_refused(
    credentials: MemoryCredentials, issuer: Issuer
) -> None:
    listener = Listener(credentials, "OAUTHBEARER", verifier=verifier(issuer))
    answer = await oauth(listener.exchange(), bearer(issuer.token(), authorization_id="admin"))
    assert isinstance(answer, Failed)
    assert listener.audit == [Attempt("OAUTHBEARER", "alice", Refusal.OTHER_AUTHORIZATION_ID, is_renewal=False)]


async def test_a_mechanism_that_is_off_is_refused_with_the_list_and_ends_it(credentials: MemoryCredentials) -> None:
    listener = Listener(credentials, "SCRAM-SHA-512", "SCRAM-SHA-256")
    for mechanism in ("PLAIN", "GSSAPI", "scram-sha-256", "", "x" * 10_000):  # no downgrade
        exchange = listener.exchange()
        assert exchange.handshake(mechanism, 1) == Handshake(
            Code.UNSUPPORTED_SASL_MECHANISM, ("SCRAM-SHA-512", "SCRAM-SHA-256")
        )
        assert exchange.handshake("SCRAM-SHA-256", 1).code is Code.ILLEGAL_SASL_STATE
    assert listener.audit == [Attempt(None, None, Refusal.UNSUPPORTED_MECHANISM, is_renewal=False)] * 5


@pytest.mark.parametrize("version", [-1, 2])
async def test_a_handshake_of_another_version_is_refused(credentials: MemoryCredentials, version: int) -> None:
    listener = Listener(credentials)
    exchange = listener.exchange()
    assert exchange.handshake("PLAIN", version) == Handshake(Code.UNSUPPORTED_VERSION, ALL)
    assert not exchange.is_under_way
    assert listener.refusals == [Refusal.UNSUPPORTED_VERSION]


# --- order


async def test_a_step_without_a_handshake_is_refused(credentials: MemoryCredentials) -> None:
    listener = Listener(credentials)
    exchange = listener.exchange()
    answer = await exchange.step(PLAIN_ALICE)
    assert isinstance(answer, Failed)
    assert answer.code is Code.ILLEGAL_SASL_STATE
    assert exchange.handshake("PLAIN", 1).code is Code.ILLEGAL_SASL_STATE
    assert listener.audit == [Attempt(None, None, Refusal.ILLEGAL_STATE, is_renewal=False)]


async def test_a_step_after_the_last_is_refused_and_nobody_stays_proven(credentials: MemoryCredentials) -> None:
    exchange = Listener(credentials).exchange()
    assert isinstance(await plain(exchange), Done)
    answer = await exchange.step(PLAIN_ALICE)
    assert isinstance(answer, Failed)
    assert answer.code is Code.ILLEGAL_SASL_STATE
    assert exchange.proven is None


async def test_a_handshake_in_the_midst_of_an_exchange_is_refused(credentials: MemoryCredentials) -> None:
    exchange = Listener(credentials).exchange()
    begin(exchange, "SCRAM-SHA-256")
    assert exchange.handshake("PLAIN", 1).code is Code.ILLEGAL_SASL_STATE
    assert isinstance(await exchange.step(PLAIN_ALICE), Failed)


async def test_nothing_is_accepted_after_a_failure(credentials: MemoryCredentials) -> None:
    listener = Listener(credentials)
    exchange = listener.exchange()
    assert isinstance(await plain(exchange, b"\0alice\0wrong"), Failed)
    assert exchange.handshake("PLAIN", 1).code is Code.ILLEGAL_SASL_STATE
    assert isinstance(await exchange.step(PLAIN_ALICE), Failed)
    assert len(listener.audit) == 1  # one event per connection, however much it sends


async def test_steps_sent_at_once_prove_nobody(credentials: MemoryCredentials) -> None:
    exchange = Listener(credentials).exchange()
    begin(exchange, "PLAIN")
    answers = await asyncio.gather(exchange.step(PLAIN_ALICE), exchange.step(PLAIN_ALICE))
    assert all(isinstance(answer, Failed) for answer in answers)
    assert exchange.proven is None


async def test_a_step_that_is_broken_off_proves_nobody(credentials: MemoryCredentials) -> None:
    listener = Listener(credentials)
    exchange = listener.exchange()
    begin(exchange, "PLAIN")
    step = asyncio.ensure_future(exchange.step(PLAIN_ALICE))
    await asyncio.sleep(0)
    step.cancel()
    await asyncio.gather(step, return_exceptions=True)
    assert exchange.proven is None
    exchange.close()
    assert listener.refusals == [Refusal.GIVEN_UP]
    assert isinstance(await exchange.step(PLAIN_ALICE), Failed)


async def test_a_step_in_which_something_breaks_proves_nobody(credentials: MemoryCredentials) -> None:
    async def broken(_function: Any) -> bool:
        raise ZeroDivisionError

    audit: list[Attempt] = []
    offered = offered_mechanisms(["PLAIN"], credentials=credentials, run_blocking=broken)
    exchange = SaslExchange(offered, max_reauth_ms=0, monotonic_ms=lambda: 0, audit=audit.append)
    begin(exchange, "PLAIN")
    with pytest.raises(ZeroDivisionError):
        await exchange.step(PLAIN_ALICE)
    assert exchange.proven is None
    assert isinstance(await exchange.step(PLAIN_ALICE), Failed)


@pytest.mark.parametrize("mechanism", ALL)
async def test_records_that_cannot_be_read_let_nobody_in_and_ask_to_try_again(
    credentials: MemoryCredentials, mechanism: str
) -> None:
    credentials.is_away = True
    listener = Listener(credentials)
    exchange = listener.exchange()
    begin(exchange, mechanism)
    first = PLAIN_ALICE if mechanism == "PLAIN" else ScramClient(mechanism, "alice", PASSWORD).first()
    answer = await exchange.step(first)
    assert isinstance(answer, Failed)
    assert answer.code is Code.BROKER_NOT_AVAILABLE
    assert "alice" not in answer.message
    assert listener.audit == [Attempt(mechanism, "alice", Refusal.UNAVAILABLE, is_renewal=False)]


async def test_a_token_of_more_than_512_kib_is_refused(credentials: MemoryCredentials) -> None:
    listener = Listener(credentials)
    for mechanism in ALL:
        exchange = listener.exchange()
        begin(exchange, mechanism)
        assert isinstance(await exchange.step(bytes(MAX_TOKEN_BYTES + 1)), Failed)
    assert set(listener.refusals) == {Refusal.TOKEN_TOO_LONG}


async def test_an_exchange_has_few_steps(credentials: MemoryCredentials) -> None:
    class Endless:
        claimed_user = None

        async def step(self, _token: bytes) -> Challenge | Accepted:
            return Challenge(b"more")

    audit: list[Attempt] = []
    exchange = SaslExchange({"ENDLESS": Endless}, max_reauth_ms=0, monotonic_ms=lambda: 0, audit=audit.append)
    begin(exchange, "ENDLESS")
    answers = [await exchange.step(b"") for _ in range(5)]
    assert [type(answer) for answer in answers] == [Challenge] * 4 + [Failed]
    assert audit[0].refusal is Refusal.TOO_MANY_STEPS


async def test_a_client_that_goes_away_before_its_proof_is_audited(credentials: MemoryCredentials) -> None:
    listener = Listener(credentials)
    exchange = listener.exchange()
    begin(exchange, "SCRAM-SHA-256")
    await exchange.step(ScramClient("SCRAM-SHA-256", "alice", PASSWORD).first())
    exchange.close()
    unused, done = listener.exchange(), listener.exchange()
    assert isinstance(await plain(done), Done)
    unused.close()
    done.close()
    assert listener.audit == [
        Attempt("SCRAM-SHA-256", "alice", Refusal.GIVEN_UP, is_renewal=False),
        Attempt("PLAIN", "alice", None, is_renewal=False),
    ]


# --- lifetime and re-authentication


async def test_a_session_lasts_as_long_as_the_listener_allows(credentials: MemoryCredentials) -> None:
    listener = Listener(credentials, max_reauth_ms=5000)
    exchange = listener.exchange()
    answer = await scram(exchange)
    assert isinstance(answer, Done)
    assert answer.lifetime_ms == 5000
    listener.now_ms += 4999
    assert not exchange.is_expired
    listener.now_ms += 1
    assert exchange.is_expired


@pytest.mark.parametrize(("max_reauth_ms", "lifetime_ms"), [(0, 600_000), (60_000, 60_000), (900_000, 600_000)])
async def test_a_session_ends_with_its_token_or_sooner(
    credentials: MemoryCredentials, issuer: Issuer, max_reauth_ms: int, lifetime_ms: int
) -> None:
    listener = Listener(credentials, "OAUTHBEARER", verifier=verifier(issuer), max_reauth_ms=max_reauth_ms)
    exchange = listener.exchange()
    answer = await oauth(exchange, bearer(issuer.token()))
    assert isinstance(answer, Done)
    assert answer.lifetime_ms == lifetime_ms
    listener.now_ms += lifetime_ms
    assert exchange.is_expired


async def test_without_limits_a_session_does_not_end(credentials: MemoryCredentials) -> None:
    listener = Listener(credentials)
    exchange = listener.exchange()
    await scram(exchange)
    listener.now_ms += 10**12
    assert not exchange.is_expired


async def test_re_authentication_starts_the_lifetime_again(credentials: MemoryCredentials) -> None:
    listener = Listener(credentials, max_reauth_ms=5000)
    exchange = listener.exchange()
    await scram(exchange)
    listener.now_ms += 4000
    begin(exchange, "SCRAM-SHA-256")
    assert exchange.is_under_way
    assert exchange.proven == Proven("alice")  # requests before it are still answered
    client = ScramClient("SCRAM-SHA-256", "alice", PASSWORD)
    challenge = await exchange.step(client.first())
    assert isinstance(challenge, Challenge)
    assert isinstance(await exchange.step(client.final(challenge.token)), Done)
    listener.now_ms += 4000
    assert not exchange.is_expired
    listener.now_ms += 1000
    assert exchange.is_expired
    assert isinstance(await scram(exchange), Done)  # late, but with a handshake, as Kafka allows
    assert not exchange.is_expired
    assert [attempt.is_renewal for attempt in listener.audit] == [False, True, True]


async def test_re_authentication_takes_over_the_groups_of_the_new_token(
    credentials: MemoryCredentials, issuer: Issuer
) -> None:
    listener = Listener(credentials, "OAUTHBEARER", verifier=verifier(issuer))
    exchange = listener.exchange()
    await oauth(exchange, bearer(issuer.token(groups=["ops"])))
    listener.now_ms += 5000
    await oauth(exchange, bearer(issuer.token(groups=["dev"])))
    assert exchange.proven is not None
    assert exchange.proven.groups == {"dev"}


async def test_another_principal_at_re_authentication_is_refused(credentials: MemoryCredentials) -> None:
    credentials.add("carol", "SCRAM-SHA-256")
    listener = Listener(credentials)
    exchange = listener.exchange()
    await scram(exchange)
    listener.now_ms += 5000
    answer = await scram(exchange, user="carol")
    assert isinstance(answer, Failed)
    assert answer.code is Code.SASL_AUTHENTICATION_FAILED
    assert exchange.proven is None
    assert listener.audit[1] == Attempt("SCRAM-SHA-256", "carol", Refusal.PRINCIPAL_CHANGED, is_renewal=True)


async def test_another_mechanism_at_re_authentication_is_refused_at_its_first_step(
    credentials: MemoryCredentials,
) -> None:
    listener = Listener(credentials)
    exchange = listener.exchange()
    await scram(exchange)
    listener.now_ms += 5000
    answer = await plain(exchange)
    assert isinstance(answer, Failed)
    assert answer.code is Code.SASL_AUTHENTICATION_FAILED
    assert listener.audit[1] == Attempt("PLAIN", "alice", Refusal.MECHANISM_CHANGED, is_renewal=True)


async def test_a_password_that_was_changed_meanwhile_ends_the_session(credentials: MemoryCredentials) -> None:
    listener = Listener(credentials)
    exchange = listener.exchange()
    await scram(exchange)
    credentials.add("alice", *HASHES, password="a new one")
    listener.now_ms += 5000
    assert isinstance(await scram(exchange), Failed)
    assert exchange.proven is None
    assert isinstance(await scram(listener.exchange(), password="a new one"), Done)


async def test_re_authentication_within_a_second_is_refused(credentials: MemoryCredentials) -> None:
    listener = Listener(credentials)
    exchange = listener.exchange()
    await scram(exchange)
    listener.now_ms += 999
    assert exchange.handshake("SCRAM-SHA-256", 1).code is Code.ILLEGAL_SASL_STATE
    assert listener.refusals == [None, Refusal.TOO_SOON]


# --- what a listener offers


def test_oauthbearer_without_anything_to_check_tokens_with_is_refused(credentials: MemoryCredentials) -> None:
    with pytest.raises(KafkaError, match="key set, an issuer and an audience") as refused:
        offered_mechanisms(["PLAIN", "OAUTHBEARER"], credentials=credentials, run_blocking=run_at_once)
    assert refused.value.code is Code.INVALID_CONFIG


@pytest.mark.parametrize("names", [[], ["GSSAPI"], ["PLAIN", "scram-sha-256"], ["SCRAM-SHA-1"]], ids=str)
def test_a_listener_of_unknown_mechanisms_or_none_is_refused(credentials: MemoryCredentials, names: list[str]) -> None:
    with pytest.raises(KafkaError) as refused:
        offered_mechanisms(names, credentials=credentials, run_blocking=run_at_once)
    assert refused.value.code is Code.INVALID_CONFIG


# --- whatever comes


STEPS = st.one_of(
    st.binary(max_size=80),
    st.text("n,=rabc\0\x01 ", max_size=30).map(str.encode),
    st.sampled_from([PLAIN_ALICE[:-1], b"\0alice\0", b"n,,n=alice,r=abc", b"n,,n=mallory,r=abc", b"\x01"]),
    st.builds(
        lambda token: b"n,,\x01auth=Bearer " + token + b"\x01\x01", st.from_regex(rb"[\w.-]{0,40}", fullmatch=True)
    ),
)
ISSUED = Issuer()
KNOWN = MemoryCredentials()
KNOWN.add("alice", *HASHES)


@given(st.lists(st.tuples(st.sampled_from([*MECHANISMS, "GSSAPI", None, None, None]), STEPS), max_size=8))
def test_whatever_a_client_without_a_password_sends_proves_nobody(messages: list[tuple[str | None, bytes]]) -> None:
    """Handshakes and tokens in any order: the answers are refusals and challenges, with at most one event and no
    exception."""

    async def story() -> None:
        listener = Listener(KNOWN, *MECHANISMS, verifier=verifier(ISSUED))
        exchange = listener.exchange()
        for mechanism, token in messages:
            if mechanism is not None:
                assert exchange.handshake(mechanism, 1).mechanisms == MECHANISMS
            else:
                assert isinstance(await exchange.step(token), Challenge | Failed)
            assert exchange.proven is None
        exchange.close()
        assert len(listener.audit) <= 1
        assert all(refusal is not None for refusal in listener.refusals)

    asyncio.run(story())
