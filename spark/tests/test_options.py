"""Options are parsed once, and impossible ones are reported in one line."""

import pickle

import pytest

from headrace_spark.errors import BadOption
from headrace_spark.options import (
    EARLIEST,
    LATEST,
    Naming,
    Place,
    connection_options,
    read_options,
    write_options,
)

BASE = {"bootstrap": "127.0.0.1:9092,[::1]:9093", "topics": "a, b"}


def test_names_and_defaults() -> None:
    options = read_options(BASE)
    assert options.connection.bootstrap == (("127.0.0.1", 9092), ("::1", 9093))
    assert options.topics == ("a", "b")
    assert (options.starting, options.ending) == (Place(mark=EARLIEST), Place(mark=LATEST))
    assert options.fail_on_data_loss
    assert options.read_committed


def test_bare_names_belong_to_the_stream() -> None:
    options = read_options({**BASE, "stream": "/factory/sensors", "topics": "press,/other:x"})
    assert options.topics == ("/factory/sensors:press", "/other:x")
    assert options.naming.shown("/factory/sensors:press") == "press"
    assert options.naming.shown("/other:x") == "/other:x"
    assert Naming(None).full("press") == "press"


def test_a_pattern_matches_whole_names_within_the_stream() -> None:
    options = read_options({"bootstrap": "h:1", "stream": "/s", "topicPattern": "pump.*"})
    assert options.matched("/s:pump1") == "/s:pump1"
    assert options.matched("/s:a-pump1") is None
    assert options.matched("/t:pump1") is None
    assert options.matched("pump1") is None


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"stream": "/default", "topicPattern": "pump.*"}, "/default:pump1"),
        ({"stream": "/default", "topicPattern": "ump.*"}, None),
        ({"topicPattern": "/default:.*"}, "/default:pump1"),
        ({"topicPattern": ".*"}, "pump1"),
        ({"topicPattern": "/factory:.*"}, None),
    ],
)
def test_a_pattern_matches_the_default_stream_though_a_listing_has_its_topics_by_bare_names(
    options: dict[str, str], name: str | None
) -> None:
    assert read_options({"bootstrap": "h:1", **options}).matched("pump1") == name


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"stream": "/s", "topicPattern": "pump.*"}, "/s:pump1"),
        ({"stream": "/default", "topicPattern": "pump.*"}, None),
        ({"topicPattern": "/s:.*"}, "/s:pump1"),
        ({"topicPattern": "/default:.*"}, None),
        ({"topicPattern": "pump.*"}, "pump1"),
    ],
)
def test_a_listings_bare_names_are_of_the_listeners_default_stream(options: dict[str, str], name: str | None) -> None:
    given = read_options({"bootstrap": "h:1", "defaultStream": "/s", **options})
    assert given.matched("pump1") == name
    assert given.default_stream == "/s"


def test_a_default_stream_is_a_path() -> None:
    with pytest.raises(BadOption, match="the option defaultStream is a path"):
        read_options({**BASE, "defaultStream": "s"})


def test_a_stream_alone_means_all_of_its_topics() -> None:
    options = read_options({"bootstrap": "h:1", "stream": "/s"})
    assert [options.matched(topic) for topic in ("/s:a", "/s:b-1.x", "/t:a", "a")] == ["/s:a", "/s:b-1.x", None, None]


def test_a_time_between_two_milliseconds_means_the_next_one() -> None:
    for text, at in (("1970-01-01T00:00:00.0001Z", 1), ("9999-12-31T23:59:59.999Z", 253_402_300_799_999)):
        assert read_options({**BASE, "startingOffsets": text}).starting == Place(time=at)


def test_a_batch_is_numbered_within_what_a_token_holds() -> None:
    named = {"bootstrap": "h:1", "queryName": "q"}
    assert write_options({**named, "batchId": str(2**31 - 1)}).batch == 2**31 - 1
    for text in (str(2**31), "\u00b2", "-1", "9" * 5_000):
        with pytest.raises(BadOption, match="batchId"):
            write_options({**named, "batchId": text})


def test_options_are_found_in_any_case() -> None:
    assert read_options({**BASE, "MAXBYTESPERTRIGGER": "64m"}).max_bytes_per_trigger == 64 << 20


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", Place(mark=EARLIEST)),
        ("LATEST", Place(mark=LATEST)),
        ("1700000000000", Place(time=1_700_000_000_000)),
        ("2023-11-14T22:13:20Z", Place(time=1_700_000_000_000)),
        ("2023-11-14T22:13:20", Place(time=1_700_000_000_000)),
        ('{"a": {"0": 7, "1": -2}}', Place(mark=EARLIEST, each=((("a", 0), 7), (("a", 1), -2)))),
    ],
)
def test_places_to_start(text: str, place: Place) -> None:
    assert read_options({**BASE, "startingOffsets": text}).starting == place


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "bootstrap is missing"),
        ({"bootstrap": "nohost", "topics": "a"}, "host:port"),
        ({"bootstrap": "h:1"}, "either the option topics"),
        ({"bootstrap": "h:\u00b2", "topics": "a"}, "host:port"),
        ({"bootstrap": "h:65536", "topics": "a"}, "host:port"),
        ({**BASE, "timeout": "nan"}, "timeout"),
        ({**BASE, "timeout": "1e300"}, "timeout"),
        ({**BASE, "maxOffsetsPerTrigger": "9" * 5_000}, "positive number"),
        ({**BASE, "maxBytesPerTrigger": str(2**63)}, "positive number"),
        ({**BASE, "maxBytesPerTrigger": "\u0663"}, "positive number"),
        ({**BASE, "startingOffsets": str(2**63)}, "earliest, latest"),
        ({**BASE, "startingOffsets": "\u00b2"}, "earliest, latest"),
        ({**BASE, "startingOffsets": "1969-12-31T23:59:59.999Z"}, "before 1970"),
        ({**BASE, "startingOffsets": '{"a": {"0": 9223372036854775808}}'}, "no partition can have"),
        ({**BASE, "startingOffsets": '{"a": {"2147483648": 1}}'}, "no partition can have"),
        ({**BASE, "startingOffsets": '{"a": {"0": 1.5}}'}, "not JSON of the form"),
        ({**BASE, "startingOffsets": '{"a": ' + "[" * 100_000}, "not JSON of the form"),
        ({"bootstrap": "h:1", "topics": "a", "topicPattern": "b"}, "either the option topics"),
        ({"bootstrap": "h:1", "topics": " , "}, "names no topic"),
        ({"bootstrap": "h:1", "topicPattern": "("}, "not a regular expression"),
        ({**BASE, "stream": "sensors"}, "is a path"),
        ({**BASE, "startingOffsets": "yesterday"}, "startingOffsets is earliest, latest, a time"),
        ({**BASE, "startingOffsets": '{"a": 5}'}, "not JSON of the form"),
        ({**BASE, "startingOffsets": '{"a": {"0": -3}}'}, "use an offset"),
        ({**BASE, "endingOffsets": "earliest"}, "cannot be earliest"),
        ({**BASE, "maxBytesPerTrigger": "0"}, "positive number"),
        ({**BASE, "maxBytesPerTrigger": "1m", "maxOffsetsPerTrigger": "5"}, "not both"),
        ({**BASE, "includeHeaders": "yes"}, "true or false"),
        ({**BASE, "isolation": "serializable"}, "read_committed or"),
        ({**BASE, "timeout": "soon"}, "number of seconds"),
    ],
)
def test_what_cannot_work_is_said(options: dict[str, str], message: str) -> None:
    with pytest.raises(BadOption, match=message) as caught:
        read_options(options)
    assert "\n" not in str(caught.value)


def test_a_write_takes_one_topic() -> None:
    assert write_options({"bootstrap": "h:1", "topic": "out", "stream": "/s"}).topic == "/s:out"
    with pytest.raises(BadOption, match="column topic"):
        write_options(BASE)
    with pytest.raises(BadOption, match="goes with queryName"):
        write_options({"bootstrap": "h:1", "batchId": "5"})
    with pytest.raises(BadOption, match="unknown compression"):
        write_options({"bootstrap": "h:1", "compression": "rar"})


LOGIN = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "kafka.sasl.jaas.config": 'a.ScramLoginModule required username="alice" password="s3cret";',
    "kafka.ssl.truststore.type": "PEM",
    "kafka.ssl.truststore.location": "/ca.crt",
    "kafka.fetch.max.bytes": "1",
}


@pytest.mark.parametrize("raw", [LOGIN, {name.lower(): value for name, value in LOGIN.items()}])
def test_who_asks_is_said_in_the_names_of_sparks_own_connector(raw: dict[str, str]) -> None:
    for options in (read_options({**BASE, **raw}), write_options({"bootstrap": "h:1", **raw})):
        security = options.connection.security
        assert (security.protocol, security.username, security.password) == ("SASL_SSL", "alice", "s3cret")
        assert security.ca_file == "/ca.crt"
        assert "s3cret" not in repr(options)
        assert pickle.loads(pickle.dumps(options)) == options


def test_a_client_certificate_is_one_of_sparks_options_too() -> None:
    own = {"kafka.ssl.keystore.type": "PEM", "kafka.ssl.keystore.location": "/own.pem"}
    security = connection_options({"bootstrap": "h:1", "kafka.security.protocol": "SSL", **own}).security
    assert (security.protocol, security.certificate_file) == ("SSL", "/own.pem")


def test_what_is_wrong_with_security_is_told_without_its_secrets() -> None:
    for name, value, why in (
        ("kafka.sasl.mechanism", "GSSAPI", "sasl.mechanism is one of"),
        ("kafka.ssl.truststore.type", "JKS", "keytool -list -rfc"),
        ("kafka.sasl.login.class", "s3cret", "sasl.login.class is not a security property"),
        ("propertiesFile", "/f", "exclude each other"),
    ):
        with pytest.raises(BadOption, match=why) as refused:
            read_options({**BASE, **LOGIN, name: value})
        assert "s3cret" not in str(refused.value)
    assert connection_options({"bootstrap": "h:1", "propertiesFile": "/f"}).properties_file == "/f"
