import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import Code, KafkaError
from headrace.catalog.names import MAX_LENGTH, Form, TopicName, alias, check_stream, is_bare, render, shown, split

SEGMENT = st.text("abcXYZ019_-", min_size=1, max_size=12)
STREAM = st.lists(SEGMENT, min_size=1, max_size=5).map(lambda parts: "/" + "/".join(parts))
TOPIC = st.text("abcXYZ019._-", min_size=1, max_size=30).filter(lambda name: name != "." and ".." not in name)


@given(STREAM, TOPIC, st.sampled_from(Form))
def test_a_name_in_any_form_means_the_same_topic_and_is_shown_as_it_was_asked(
    stream: str, topic: str, form: Form
) -> None:
    text = render(TopicName(stream, topic, form))
    assert split(text, stream) == TopicName(stream, topic, form)
    assert render(split(text, stream)) == text


@given(STREAM, TOPIC, STREAM, TOPIC)
def test_two_topics_never_share_an_alias(stream: str, topic: str, other: str, another: str) -> None:
    assert (alias(stream, topic) == alias(other, another)) == ((stream, topic) == (other, another))


@given(STREAM, TOPIC)
def test_a_full_name_and_its_alias_have_one_length(stream: str, topic: str) -> None:
    assert len(alias(stream, topic)) == len(TopicName(stream, topic, Form.FULL).full)


def test_examples_of_the_design() -> None:
    assert split("/path/of/stream:topic", "/d") == ("/path/of/stream", "topic", Form.FULL)
    assert split("path.of.stream..topic", "/d") == ("/path/of/stream", "topic", Form.ALIAS)
    assert split("my.topic", "/default") == ("/default", "my.topic", Form.BARE)
    assert split("a...b", "/d") == ("/a", ".b", Form.ALIAS)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "...",
        "a..",
        "..a",
        "a..b..c",
        "a. .b",
        "/stream",
        "/stream:",
        "/:topic",
        "/a//b:topic",
        "/a/:topic",
        "/a.b:topic",
        "/a:b:c",
        "/a:b/c",
        "a/b",
        "a:b",
        "tøpic",
        "to pic",
        "topic\n",
        "/a\n:topic",
        "a\n..topic",
        "topic\0",
        "x" * 1_000_000,
    ],
)
def test_illegal_names_are_refused_with_one_short_line(name: str) -> None:
    with pytest.raises(KafkaError) as caught:
        split(name, "/default")
    assert caught.value.code is Code.INVALID_TOPIC_EXCEPTION
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@given(st.text(max_size=40) | st.text("/.:ab", max_size=12))
def test_any_text_is_a_name_or_refused(name: str) -> None:
    try:
        found = split(name, "/default")
    except KafkaError as error:
        code = error.code
    else:
        assert render(found) == name
        code = Code.NONE
    assert code in (Code.NONE, Code.INVALID_TOPIC_EXCEPTION)


def test_the_limit_holds_for_every_form() -> None:
    topic = "t" * (MAX_LENGTH - len("/default:"))
    for name in (topic, f"/default:{topic}", f"default..{topic}"):
        assert split(name, "/default").topic == topic
    for name in (topic + "t", f"/default:{topic}t", f"default..{topic}t"):
        with pytest.raises(KafkaError, match="longer than 249"):
            split(name, "/default")


@pytest.mark.parametrize("path", ["", "/", "a", "/a/", "/a.b", "//a", "/a b", "/" + "s" * 248])
def test_illegal_streams_are_refused(path: str) -> None:
    with pytest.raises(KafkaError):
        check_stream(path)


@given(STREAM, STREAM, TOPIC)
def test_what_a_list_shows_means_that_topic_to_whom_it_is_shown(stream: str, default: str, topic: str) -> None:
    text = shown(stream, topic, default)
    assert split(text, default)[:2] == (stream, topic)
    assert is_bare(text) == (stream == default)


@given(STREAM, TOPIC, st.sampled_from(Form))
def test_a_name_is_bare_if_it_does_not_say_its_stream(stream: str, topic: str, form: Form) -> None:
    assert is_bare(render(TopicName(stream, topic, form))) == (form is Form.BARE)
