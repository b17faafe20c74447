import uuid

import pytest

from headrace.kafka.traced_calls import TRACED, span_attributes_of
from headrace.wire import generic_codec
from headrace.wire.api_keys import ApiKey

TOPIC, BROKER = 2, 4
IDS = [{"topic_id": uuid.UUID(int=7), "name": None}]


@pytest.mark.parametrize(
    ("key", "version", "fields", "found"),
    [
        (ApiKey.CREATE_TOPICS, 7, {"topics": [{"name": "t"}, {"name": "/s:u"}]}, ("/default:t", 2)),
        (ApiKey.CREATE_TOPICS, 7, {"topics": []}, None),
        (ApiKey.DELETE_TOPICS, 3, {"topic_names": ["a.b..t"]}, ("/a/b:t", 1)),
        (ApiKey.DELETE_TOPICS, 6, {"topics": [{"name": "t", "topic_id": None}]}, ("/default:t", 1)),
        (ApiKey.DELETE_TOPICS, 6, {"topics": IDS}, None),
        (ApiKey.DELETE_RECORDS, 2, {"topics": [{"name": "t", "partitions": []}]}, ("/default:t", 1)),
        (ApiKey.CREATE_PARTITIONS, 3, {"topics": [{"name": "not a name"}]}, ("not a name", 1)),
        (
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            1,
            {
                "resources": [
                    {"resource_type": BROKER, "resource_name": "1", "configs": []},
                    {
                        "resource_type": TOPIC,
                        "resource_name": "t",
                        "configs": [{"name": "a", "config_operation": 0, "value": "hunter2"}],
                    },
                ]
            },
            ("/default:t", 1),
        ),
        (ApiKey.ELECT_LEADERS, 2, {"topic_partitions": [{"topic": "t", "partitions": [0]}]}, ("/default:t", 1)),
        (ApiKey.ELECT_LEADERS, 2, {"topic_partitions": None}, None),
        (ApiKey.LIST_GROUPS, 4, {}, None),
        (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": [{"name": "alice"}]}, None),
        (ApiKey.DELETE_GROUPS, 2, {"groups_names": ["g"]}, None),
    ],
)
def test_topics_alone_are_told_of_a_request(
    key: ApiKey, version: int, fields: dict[str, object], found: tuple[str, int] | None
) -> None:
    asked = generic_codec.decode_request(key, version, generic_codec.encode_request(key, version, fields))
    told = span_attributes_of(asked, "/default")
    assert told == ({} if found is None else {"headrace.path": found[0], "headrace.paths": found[1]})
    assert key in TRACED


def test_what_clients_ask_all_the_time_has_no_spans() -> None:
    assert TRACED.isdisjoint(
        {
            *(ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, ApiKey.LIST_OFFSETS, ApiKey.API_VERSIONS),
            *(ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.FIND_COORDINATOR, ApiKey.HEARTBEAT),
            *(ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.LEAVE_GROUP, ApiKey.SASL_AUTHENTICATE),
            ApiKey.HEADRACE_ADMIN,  # admin_api creates their spans
        }
    )


def test_a_request_that_was_not_read_tells_nothing() -> None:
    assert span_attributes_of(None, "/default") == {}
