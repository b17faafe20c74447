"""Errors of a source as a whole. An error in the answer to one call is a KafkaError with the answer's code."""

from headrace.base.errors import Code, HeadraceError


class SourceUnreachable(HeadraceError):
    """There was no usable answer: nothing listens, the connection ended, silence, or bytes that are not Kafka's
    protocol.

    The outcome of the call is unknown: it may have been executed. Retrying later may succeed.
    """

    code = Code.BROKER_NOT_AVAILABLE

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out
        """Whether the deadline passed in silence; otherwise there was a sign that nobody answers."""

    def again(self) -> "SourceUnreachable":
        """A copy of the error for another caller to raise."""
        return SourceUnreachable(str(self), timed_out=self.timed_out)


class SourceRefuses(HeadraceError):
    """The source is reachable but refuses the credentials, or has no security setting that both sides accept.

    Retrying is useless until one side is reconfigured.
    """

    code = Code.CLUSTER_AUTHORIZATION_FAILED

    def again(self) -> "SourceRefuses":
        """A copy of the error for another caller to raise."""
        return SourceRefuses(str(self))
