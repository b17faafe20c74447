"""The refusal of a batch whose predecessor has not arrived."""

from headrace.base.errors import Code, KafkaError


class SequenceGap(KafkaError):
    """A batch arrived before the one that it follows."""

    def __init__(self, message: str, *, source: int, expected: int) -> None:
        """`source`: see `producer_state.Producer.source`. `expected`: the sequence that comes next."""
        super().__init__(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, message)
        self.source = source
        self.expected = expected
