"""Tokens: the same for every attempt of a task, and different from those of other tasks."""

from headrace_spark.tokens import TaskToken, made_from_rows


def test_every_attempt_of_a_task_has_the_same_token() -> None:
    assert TaskToken("q", 3, 7).part("/s:t", 0) == TaskToken("q", 3, 7).part("/s:t", 0)


def test_queries_tasks_topics_and_parts_have_tokens_of_their_own() -> None:
    tokens = {
        TaskToken(query, task, 7).part(topic, number).producer_id
        for query in ("q", "r")
        for task in (0, 1, 11)
        for topic in ("/s:t", "/s:u")
        for number in (0, 1, 10)
    }
    assert len(tokens) == 36
    assert all(-(1 << 63) <= token < -1 for token in tokens), "a Kafka broker takes such ids for none"


def test_batches_of_a_query_are_numbered_by_the_sequence() -> None:
    first, second = TaskToken("q", 0, 7).part("t", 0), TaskToken("q", 0, 8).part("t", 0)
    assert first.producer_id == second.producer_id
    assert (first.base_sequence, second.base_sequence) == (7, 8)
    assert TaskToken("q", 0, (1 << 31) + 5).part("t", 0).base_sequence == 5, "a sequence has 31 bits"


def test_other_rows_of_the_same_batch_have_another_token_for_each_batch_and_digest() -> None:
    token, later = TaskToken("q", 0, 7).part("t", 0), TaskToken("q", 0, 8).part("t", 0)
    made = [
        made_from_rows(token, b"a"),
        made_from_rows(token, b"b"),
        made_from_rows(later, b"a"),
    ]
    assert made_from_rows(token, b"a") == made[0]
    assert len({token.producer_id, *(each.producer_id for each in made)}) == 4
    assert made[0].base_sequence == 7
