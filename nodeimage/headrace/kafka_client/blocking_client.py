"""The client as one thread has it: a connection to one node over a blocking socket. For the command line and Spark.

`call` sends a request and waits for its answer. Who sends the next request before the last answer is there uses `send`
and `receive`. Requests are in versions that the caller knows the node to speak: none are negotiated. TLS and SASL are
done with when a connection is there.

A command, or a task of Spark, starts without what it does not ask for: kio's schemas and msgspec are imported by the
calls that need them.
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
"""Bytes of the largest response that is read; above it the other side does not speak Kafka."""


_WANTS_SECURITY: Final = "does it want TLS or a user? Then security.protocol is SSL, SASL_SSL or SASL_PLAINTEXT"
_WANTS_USER: Final = (
    "does it want a user, or a certificate of the client? Then security.protocol is SASL_SSL, or give ssl.key.location"
)
_WANTS_NO_TLS: Final = "does it speak TLS there? Else security.protocol is PLAINTEXT or SASL_PLAINTEXT"


_REFUSAL_S: Final = 1.0


class Unanswered(ConnectionError):
    """The other side ended the connection before it answered anything: it wants TLS, or a user, perhaps."""


class Access:
    """Who is asking and whom to trust, for any number of connections and threads: files are read once, when made.

    Raises KafkaError INVALID_CONFIG for files that cannot be used.
    """

    __slots__ = ("context", "security")

    def __init__(self, security: Security) -> None:
        self.security = security
        self.context: Final = security.context()


class BrokerConnection(Closing):
    """A connection to `host`:`port`, opened at once. Raises ConnectionError or TimeoutError, here and in each call.

    Raises SourceRefuses where asking another time is of no use: the other side does not take what `access` says, or is
    not to be trusted. After an error the connection is closed.
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
        """`timeout_s`: for the next bytes of an answer, and for connecting where `connect_timeout_s` is not given.

        `access`: None speaks in clear and says no name.
        """
        self.address = f"{host}:{port}"
        self._exchange = Exchange[None](client_id=client_id, answer_bytes=answer_bytes)
        self._reused = memoryview(b"")
        """Memory of the last passing answer."""
        self._good_until: float | None = None
        self._hint = _WANTS_USER if access is not None and access.context is not None else _WANTS_SECURITY
        """Why nothing was answered yet, where the connection ends before."""
        try:
            self._socket = socket.create_connection((host, port), timeout=connect_timeout_s or timeout_s)
            self._socket.settimeout(timeout_s)
        except (TimeoutError, ConnectionError) as error:
            raise type(error)(f"{self.address} cannot be reached: {error}") from error
        except OSError as error:
            raise ConnectionError(f"{self.address} cannot be reached: {error}") from error
        try:
            # The kernel may choose the very port that nobody listens on as ours: TCP's simultaneous open with itself.
            alone = self._socket.getsockname() == self._socket.getpeername()
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:  # the other side has ended it already
            self._socket.close()
            raise ConnectionError(f"{self.address} cannot be reached: {error}") from error
        if alone:
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
        """Whether the server ends the connection at the next request: its session has lived its time (KIP-368).

        Never while answers are to come.
        """
        return self._good_until is not None and not self._exchange.under_way and time.monotonic() >= self._good_until

    def close(self) -> None:
        """Close the connection; answers that are still to come are lost. Closing twice is fine."""
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
                raise ConnectionError(f"{self.address} tells no versions: error {error}")
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
        """Any API of `wire/generic_codec.py`: kio's entity of the answer. Codes in it are the caller's to read.

        Raises also `MalformedRequest`, and as `generic_codec.encode_request` for fields that cannot be sent.
        """
        from headrace.wire import generic_codec

        answer = self.call(key, version, generic_codec.encode_request(key, version, fields))
        return generic_codec.decode_response(key, version, answer)

    def admin(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """The result of one of Headrace's own calls, or KafkaError with the node's code and message.

        A node that is not Headrace's is a ConnectionError.
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
        """Send a request."""
        with self._closed_on_errors():
            try:
                self._socket.sendall(self._exchange.ask(api_key, version, len(body), None) + body)
            except (ssl.SSLEOFError, ConnectionError):
                self._hear_refusal()
                raise

    def receive(self, *, passing: bool = False) -> memoryview:
        """The body of the answer to the oldest request under way.

        A `passing` answer is good until the next passing one is received over this connection: fresh memory costs as
        much as receiving into it.
        """
        allocate = self._memory_again if passing else fresh_memory
        with self._closed_on_errors():
            while (answer := self._exchange.answer(allocate)) is None:
                count = self._socket.recv_into(self._exchange.responses.get_buffer())
                if not count:
                    raise ConnectionError("closed by the other side")
                self._exchange.responses.came(count)
        self._hint = ""
        return answer[1]

    def _hear_refusal(self) -> None:
        """With TLS 1.3 a client's certificate is refused behind the handshake: raise what the server said of it."""
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

    def _memory_again(self, length: int) -> memoryview:
        if length > len(self._reused):
            self._reused = memoryview(bytearray(max(length, 2 * len(self._reused))))
        return self._reused[:length]

    @contextmanager
    def _closed_on_errors(self) -> Iterator[None]:
        """What is left of an answer must not be taken for the next one."""
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
        raise ConnectionError(f"{address} ended while TLS began ({_WANTS_NO_TLS})") from error
    except ssl.SSLError as error:
        raise _tls_failure(address, error) from error
    except OSError as error:
        raise ConnectionError(f"{address} cannot be reached: {error}") from error


def _tls_failure(address: str, error: ssl.SSLError) -> Exception:
    """In Kafka's words, what the other side did not like."""
    reason = error.reason or str(error)
    if reason == "WRONG_VERSION_NUMBER":
        return SourceRefuses(f"{address} speaks no TLS there: use security.protocol PLAINTEXT, or the port that does")
    if "CERTIFICATE_REQUIRED" in reason or reason == "SSLV3_ALERT_HANDSHAKE_FAILURE":
        return SourceRefuses(
            f"{address} wants a certificate of the client (ssl.certificate.location, ssl.key.location)"
        )
    if "ALERT" in reason:
        return SourceRefuses(f"{address} refuses TLS with this client: {reason.lower().replace('_', ' ')}")
    return ConnectionError(f"{address}: TLS broke off: {reason.lower().replace('_', ' ')}")
