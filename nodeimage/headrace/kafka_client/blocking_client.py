"""The blocking client: a connection to one node over a blocking socket, for one thread. For the command line and Spark.

`call` sends a request and waits for its answer. `send` and `receive` allow sending the next request before the last
answer has arrived. The caller chooses request versions that the node is known to support: none are negotiated. TLS and
SASL are complete when the constructor returns.

A command, or a Spark task, should start without loading what it does not use: the calls that need kio's schemas and
msgspec import them.
"""

import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from headrace.base.closing import Closing
from headrace.base.errors import MalformedRequest
from headrace.kafka_client.errors import SourceRefuses
from headrace.kafka_client.exchange import Exchange
from headrace.kafka_client.responses import fresh_memory
from headrace.security.client_security import Security
from headrace.wire.api_keys import ApiKey

MAX_RESPONSE: Final = 256 << 20
"""Bytes of the largest response that is read; a larger one means that the other side does not speak Kafka."""


_WANTS_SECURITY: Final = "does it require TLS or a user? Then security.protocol is SSL, SASL_SSL or SASL_PLAINTEXT"
_WANTS_USER: Final = (
    "does it require a user, or a certificate of the client? Then security.protocol is SASL_SSL, or give "
    "ssl.key.location"
)
_WANTS_NO_TLS: Final = "does this port use TLS? If not, security.protocol is PLAINTEXT or SASL_PLAINTEXT"


_REFUSAL_S: Final = 1.0


class Unanswered(ConnectionError):
    """The other side closed the connection before it answered anything: it may require TLS, or a user."""


class Access:
    """The client's credentials and trust, for any number of connections and threads: files are read once, at
    creation."""

    __slots__ = ("context", "security")

    def __init__(self, security: Security) -> None:
        self.security = security
        self.context: Final = security.context()


class BrokerConnection(Closing):
    """A connection to `host`:`port`, opened by the constructor, which like each call raises ConnectionError or
    TimeoutError.

    Raises SourceRefuses if a retry is useless: the other side does not accept what `access` offers, or cannot be
    trusted. After an error the connection is closed.
    """

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str = "headrace",
        timeout_s: float = 30.0,
        *,
        connect_timeout_s: float | None = None,
        answer_bytes: int = MAX_RESPONSE,
        access: Access | None = None,
    ) -> None:
        """`timeout_s`: the limit on waiting for the next bytes of an answer, and on connecting if `connect_timeout_s`
        is not given.

        `access`: None connects without TLS and without a user.
        """
        self.address = f"{host}:{port}"
        self._exchange = Exchange[None](client_id=client_id, answer_bytes=answer_bytes)
        self._reused = memoryview(b"")
        """Memory of the last passing answer, reused for the next."""
        self._good_until: float | None = None
        self._hint = _WANTS_USER if access is not None and access.context is not None else _WANTS_SECURITY
        """A likely reason if the connection ends before the first answer."""
        try:
            self._socket = socket.create_connection((host, port), timeout=connect_timeout_s or timeout_s)
            self._socket.settimeout(timeout_s)
        except (TimeoutError, ConnectionError) as error:
            raise type(error)(f"{self.address} cannot be reached: {error}") from error
        except OSError as error:
            raise ConnectionError(f"{self.address} cannot be reached: {error}") from error
        try:
            # If nobody listens at a port of this machine, the kernel may choose it as the source port too, and the
            # socket connects to itself (TCP's simultaneous open).
            is_to_itself = self._socket.getsockname() == self._socket.getpeername()
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:  # the other side has closed the connection already
            self._socket.close()
            raise ConnectionError(f"{self.address} cannot be reached: {error}") from error
        if is_to_itself:
            self._socket.close()
            raise ConnectionError(f"{self.address} cannot be reached: nobody listens there")
        if access is not None:
            try:
                self._secure(access, host)
            except BaseException:
                self._socket.close()
                raise

    @property
    def is_stale(self) -> bool:
        """Whether the server will end the connection at the next request, because its session has expired (KIP-368).

        Never true while answers are outstanding.
        """
        return self._good_until is not None and not self._exchange.under_way and time.monotonic() >= self._good_until

    def close(self) -> None:
        """Close the connection; outstanding answers are lost. Closing twice is harmless."""
        self._socket.close()

    # --- TLS and SASL

    def _secure(self, access: Access, host: str) -> None:
        security = access.security
        if access.context is not None:
            self._socket = _tls(self._socket, access.context, host, self.address)
        if security.mechanism is None:
            return
        from headrace.kafka_client import authentication
        from headrace.wire import api_versions

        try:
            error, versions = api_versions.decode_v0_response(self.call(ApiKey.API_VERSIONS, 0, b""))
            if error:
                raise ConnectionError(f"{self.address} did not report its API versions: error {error}")
            steps = authentication.steps(security, security.mechanism, address=self.address, versions=versions)
            following: authentication.Request | authentication.Authenticated = next(steps)
            while isinstance(following, authentication.Request):
                answer = self.call(following.api_key, following.version, following.body)
                following = authentication.following(steps, answer)
        except MalformedRequest as error:
            raise ConnectionError(f"{self.address}: {error}; is it a Kafka port?") from error
        if following.life_s is not None:
            self._good_until = time.monotonic() + following.life_s

    # --- calls

    def call(self, api_key: int, version: int, body: bytes) -> memoryview:
        """Send a request and wait for the body of its response; no other request may be under way."""
        self.send(api_key, version, body)
        return self.receive()

    def ask(self, key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
        """Call any API of `wire/generic_codec.py`; returns kio's entity of the answer. Error codes in it are left to
        the caller.

        Also raises `MalformedRequest`, and as `generic_codec.encode_request` for fields that cannot be encoded.
        """
        from headrace.wire import generic_codec

        answer = self.call(key, version, generic_codec.encode_request(key, version, fields))
        return generic_codec.decode_response(key, version, answer)

    def admin(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """Call one of Headrace's own admin methods; returns its result, or raises KafkaError with the node's code and
        message.

        Raises ConnectionError if the node is not one of Headrace's.
        """
        from headrace.wire import admin_call

        request = admin_call.encode_admin_request(method, params or {})
        answer = self.call(ApiKey.HEADRACE_ADMIN, 0, request)
        try:
            return admin_call.decode_admin_response(method, answer, admin_call.ANYTHING)
        except MalformedRequest as error:
            raise ConnectionError(f"{self.address} gave no admin answer: {error}") from error

    # --- requests and answers apart

    def send(self, api_key: int, version: int, body: bytes) -> None:
        """Send a request without waiting for its answer."""
        with self._closed_on_errors():
            try:
                self._socket.sendall(self._exchange.ask(api_key, version, len(body), None) + body)
            except (ssl.SSLEOFError, ConnectionError):
                self._raise_tls_refusal()
                raise

    def receive(self, *, passing: bool = False) -> memoryview:
        """Wait for the body of the answer to the oldest request under way.

        A `passing` answer stays valid until the next passing one is received over this connection: allocating memory
        would cost as much as receiving into it.
        """
        allocate = self._reuse_memory if passing else fresh_memory
        with self._closed_on_errors():
            while (answer := self._exchange.answer(allocate)) is None:
                count = self._socket.recv_into(self._exchange.responses.get_buffer())
                if not count:
                    raise ConnectionError("closed by the other side")
                self._exchange.responses.came(count)
        self._hint = ""
        return answer[1]

    def _raise_tls_refusal(self) -> None:
        """Raise the server's TLS alert, if any: with TLS 1.3 a client's certificate is refused only after the
        handshake."""
        if isinstance(self._socket, ssl.SSLSocket):
            self._socket.settimeout(_REFUSAL_S)
            try:
                self._socket.recv(1)
            except ssl.SSLEOFError:
                return
            except ssl.SSLError:
                raise
            except OSError:
                return

    def _reuse_memory(self, length: int) -> memoryview:
        if length > len(self._reused):
            self._reused = memoryview(bytearray(max(length, 2 * len(self._reused))))
        return self._reused[:length]

    @contextmanager
    def _closed_on_errors(self) -> Iterator[None]:
        """Close the connection on errors, so that the rest of an answer is not taken for the next one; translate the
        errors."""
        try:
            yield
        except TimeoutError as error:
            self.close()
            raise TimeoutError(f"{self.address} did not answer in time") from error
        except (ssl.SSLEOFError, ConnectionError) as error:
            self.close()
            said = "closed by the other side" if isinstance(error, ssl.SSLError) else error.strerror or str(error)
            if self._hint:
                raise Unanswered(f"{self.address}: {said} ({self._hint})") from error
            raise ConnectionError(f"{self.address}: {said}") from error
        except ssl.SSLError as error:
            self.close()
            raise _tls_failure(self.address, error) from error
        except (OSError, MalformedRequest) as error:
            self.close()
            raise ConnectionError(f"{self.address}: {error}") from error


def _tls(plain: socket.socket, context: ssl.SSLContext, host: str, address: str) -> ssl.SSLSocket:
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except TimeoutError as error:
        raise TimeoutError(f"{address} did not answer in time ({_WANTS_NO_TLS})") from error
    except ssl.SSLCertVerificationError as error:
        raise SourceRefuses(
            f"{address} has a certificate that is not trusted: {error.verify_message} (ssl.ca.location)"
        ) from error
    except (ssl.SSLEOFError, ConnectionError) as error:
        raise ConnectionError(f"{address} closed the connection during the TLS handshake ({_WANTS_NO_TLS})") from error
    except ssl.SSLError as error:
        raise _tls_failure(address, error) from error
    except OSError as error:
        raise ConnectionError(f"{address} cannot be reached: {error}") from error


def _tls_failure(address: str, error: ssl.SSLError) -> Exception:
    """A TLS error in terms of Kafka's client settings."""
    reason = error.reason or str(error)
    if reason == "WRONG_VERSION_NUMBER":
        return SourceRefuses(
            f"{address} does not use TLS: set security.protocol to PLAINTEXT or SASL_PLAINTEXT, or give the port "
            "that does"
        )
    if "CERTIFICATE_REQUIRED" in reason or reason == "SSLV3_ALERT_HANDSHAKE_FAILURE":
        return SourceRefuses(
            f"{address} wants a certificate of the client (ssl.certificate.location, ssl.key.location)"
        )
    if "ALERT" in reason:
        return SourceRefuses(f"{address} refuses TLS with this client: {reason.lower().replace('_', ' ')}")
    return ConnectionError(f"{address}: TLS broke off: {reason.lower().replace('_', ' ')}")
