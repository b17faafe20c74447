"""What is wrong with a source as a whole. What a source answers to one call is a KafkaError with the answer's code."""

from headrace.base.errors import Code, HeadraceError


class SourceUnreachable(HeadraceError):
    """No answer that can be used: nothing listens, the connection ended, silence, or bytes that are not Kafka's.

    Nothing is known of what was asked: it may have been done. Try again later.
    """

    code = Code.BROKER_NOT_AVAILABLE

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out
        """There was silence until the deadline; else something said that nobody answers."""

    def again(self) -> "SourceUnreachable":
        """The same, for another caller to raise."""
        return SourceUnreachable(str(self), timed_out=self.timed_out)


class SourceRefuses(HeadraceError):
    """The source is there and refuses the credentials, or offers no security that both accept.

    Trying again is of no use before somebody changes one side.
    """

    code = Code.CLUSTER_AUTHORIZATION_FAILED

    def again(self) -> "SourceRefuses":
        """The same, for another caller to raise."""
        return SourceRefuses(str(self))
