"""Topic names: `/path/of/stream:topic`, its alias `path.of.stream..topic`, and bare names (DESIGN section 7).

Pure functions; knows nothing of which streams exist. The alias is for clients whose libraries refuse `/` and `:`. It
is unambiguous: path segments hold no dot and topics no `..`, so the first `..` of a name ends the path. A full name
and its alias have the same length, so that the limit of 249 characters is one limit.
"""

import re
from enum import Enum
from typing import Final, NamedTuple

from headrace.base.errors import Code, KafkaError

MAX_LENGTH = 249
"""Of a full name, and of its alias. Kafka's own limit."""
DEFAULT_STREAM: Final = "/default"
"""The stream of bare names, where a listener has no other."""

_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_SEGMENT = r"[a-zA-Z0-9_-]+"
_STREAM = re.compile(rf"(?:/{_SEGMENT})+")
_ALIAS_PATH = re.compile(rf"{_SEGMENT}(?:\.{_SEGMENT})*")


class Form(Enum):
    """The form in which a client names a topic, and in which it is shown to that client."""

    FULL = "full"
    ALIAS = "alias"
    BARE = "bare"


class TopicName(NamedTuple):
    """A topic's name in parts, with the form in which it was asked for."""

    stream: str
    topic: str
    form: Form

    @property
    def full(self) -> str:
        """`/path/of/stream:topic`: one name per topic, whatever the form."""
        return f"{self.stream}:{self.topic}"


def is_bare(name: str) -> bool:
    """Whether a topic's name says nothing of its stream, so that it means one of the default stream."""
    return not name.startswith("/") and ".." not in name


def split(name: str, default_stream: str) -> TopicName:
    """The stream and topic that `name` means. Raises KafkaError(INVALID_TOPIC_EXCEPTION) with the reason."""
    if name.startswith("/"):
        stream, colon, topic = name.partition(":")
        if not colon:
            raise _invalid(name, "it names a stream; a topic is /path/of/stream:topic")
        form = Form.FULL
    elif ".." in name:
        path, _, topic = name.partition("..")
        if not _ALIAS_PATH.fullmatch(path):
            raise _invalid(
                name, "what stands before '..' must be a stream's path with dots, as in path.of.stream..topic"
            )
        stream, form = "/" + path.replace(".", "/"), Form.ALIAS
    else:
        stream, topic, form = default_stream, name, Form.BARE
    if reason := _topic_fault(topic) or (stream_fault(stream) if form is Form.FULL else None):
        raise _invalid(name, reason)
    if len(stream) + 1 + len(topic) > MAX_LENGTH:
        raise _invalid(name, f"with its stream it is longer than {MAX_LENGTH} characters")
    return TopicName(stream, topic, form)


def full(name: str, default_stream: str) -> str:
    """The full name that `name` means; one that cannot be as it is."""
    try:
        return split(name, default_stream).full
    except KafkaError:
        return name


def render(name: TopicName, form: Form | None = None) -> str:
    """The name as text, in `form` or in the form in which it was asked for."""
    match form or name.form:
        case Form.FULL:
            return name.full
        case Form.ALIAS:
            return alias(name.stream, name.topic)
        case Form.BARE:
            return name.topic


def shown(stream: str, topic: str, default_stream: str) -> str:
    """A topic's name in lists, for clients whose bare names are of `default_stream`."""
    return topic if stream == default_stream else f"{stream}:{topic}"


def alias(stream: str, topic: str) -> str:
    """`path.of.stream..topic`."""
    return f"{stream[1:].replace('/', '.')}..{topic}"


def check_stream(path: str) -> str:
    """`path` itself. Raises KafkaError(INVALID_TOPIC_EXCEPTION) unless it is a stream's path."""
    if reason := stream_fault(path):
        shown = path if len(path) <= MAX_LENGTH else path[:MAX_LENGTH] + "…"
        raise KafkaError(Code.INVALID_TOPIC_EXCEPTION, f"{shown!r} is no path for a stream: {reason}")
    return path


def stream_fault(path: str) -> str | None:
    """What is wrong with a stream's path, in one line; None if nothing."""
    if len(path) > MAX_LENGTH - 2:
        return f"a stream's path has at most {MAX_LENGTH - 2} characters"
    if not _STREAM.fullmatch(path):
        return "a stream's path is /segment/segment, each of letters, digits, '-' and '_'"
    return None


def fault_in(stream: str, topic: str) -> str | None:
    """Why a stream cannot have a topic of that name, in one line; None: it can."""
    if reason := _topic_fault(topic):
        return reason
    return (
        f"with its stream it is longer than {MAX_LENGTH} characters"
        if len(stream) + 1 + len(topic) > MAX_LENGTH
        else None
    )


def _topic_fault(topic: str) -> str | None:
    if not topic:
        return "the topic is missing"
    if not _TOPIC.fullmatch(topic):
        return "topics hold letters, digits, '.', '_' and '-'"
    if topic == "." or ".." in topic:
        return "a topic is not '.' and holds no '..'"
    return None


def _invalid(name: str, reason: str) -> KafkaError:
    shown = name if len(name) <= MAX_LENGTH else name[:MAX_LENGTH] + "…"
    return KafkaError(Code.INVALID_TOPIC_EXCEPTION, f"{shown!r} is no name for a topic: {reason}")
