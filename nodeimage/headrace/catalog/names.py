"""Topic names: `/path/of/stream:topic`, its alias `path.of.stream..topic`, and bare names.

Pure functions, without knowledge of which streams exist. The alias is for clients whose libraries refuse `/` and `:`.
It is unambiguous: path segments contain no dot and topics no `..`, so the first `..` of a name ends the path. A full
name and its alias have the same length, so one limit of 249 characters holds for both.
"""

import re
from enum import Enum
from typing import Final, NamedTuple

from headrace.base.errors import Code, KafkaError

MAX_LENGTH = 249
"""Limit of the characters of a full name, and of its alias; the same as Kafka's for topic names."""
DEFAULT_STREAM: Final = "/default"
"""The stream of bare names at a listener without a default stream of its own."""

_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_SEGMENT = r"[a-zA-Z0-9_-]+"
_STREAM = re.compile(rf"(?:/{_SEGMENT})+")
_ALIAS_PATH = re.compile(rf"{_SEGMENT}(?:\.{_SEGMENT})*")


class Form(Enum):
    """The form in which a client names a topic, and in which the topic is shown to that client."""

    FULL = "full"
    ALIAS = "alias"
    BARE = "bare"


class TopicName(NamedTuple):
    """A topic's name in parts, with the form in which the client gave it."""

    stream: str
    topic: str
    form: Form

    @property
    def full(self) -> str:
        """`/path/of/stream:topic`: one name per topic, whatever the form."""
        return f"{self.stream}:{self.topic}"


def is_bare(name: str) -> bool:
    """Whether a topic's name lacks a stream, so that it refers to the default stream."""
    return not name.startswith("/") and ".." not in name


def split(name: str, default_stream: str) -> TopicName:
    """The stream and topic that `name` refers to. Raises KafkaError(INVALID_TOPIC_EXCEPTION) with the reason."""
    if name.startswith("/"):
        stream, colon, topic = name.partition(":")
        if not colon:
            raise _invalid(name, "it names a stream; a topic is /path/of/stream:topic")
        form = Form.FULL
    elif ".." in name:
        path, _, topic = name.partition("..")
        if not _ALIAS_PATH.fullmatch(path):
            raise _invalid(name, "the part before '..' must be a stream's path with dots, as in path.of.stream..topic")
        stream, form = "/" + path.replace(".", "/"), Form.ALIAS
    else:
        stream, topic, form = default_stream, name, Form.BARE
    if reason := _topic_fault(topic) or (stream_fault(stream) if form is Form.FULL else None):
        raise _invalid(name, reason)
    if len(stream) + 1 + len(topic) > MAX_LENGTH:
        raise _invalid(name, f"with its stream it is longer than {MAX_LENGTH} characters")
    return TopicName(stream, topic, form)


def full(name: str, default_stream: str) -> str:
    """The full name of the topic that `name` refers to; an illegal name is returned unchanged."""
    try:
        return split(name, default_stream).full
    except KafkaError:
        return name


def render(name: TopicName, form: Form | None = None) -> str:
    """The name as text, in `form` or else in the form in which the client gave it."""
    match form or name.form:
        case Form.FULL:
            return name.full
        case Form.ALIAS:
            return alias(name.stream, name.topic)
        case Form.BARE:
            return name.topic


def shown(stream: str, topic: str, default_stream: str) -> str:
    """A topic's name in lists for clients with that default stream: bare if the topic is in it, else full."""
    return topic if stream == default_stream else f"{stream}:{topic}"


def alias(stream: str, topic: str) -> str:
    """`path.of.stream..topic`."""
    return f"{stream[1:].replace('/', '.')}..{topic}"


def check_stream(path: str) -> str:
    """Return `path`. Raises KafkaError(INVALID_TOPIC_EXCEPTION) if it is not a legal stream path."""
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
    """Why a stream cannot have a topic of that name, in one line; None if it can."""
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
