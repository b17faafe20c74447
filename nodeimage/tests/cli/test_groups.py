"""`headrace groups` on a running node."""

from typing import Any

from kit.commands_on_node import Headrace


def test_a_group_whose_id_steers_terminals_is_shown_escaped(hr: Headrace, cluster: Any) -> None:
    topic, group = cluster.topic(), "a\x1b[31mred\x1b]0;title\x07\u202e"
    hr("produce", topic, "-v", "1")
    assert hr("consume", topic, "--group", group).out == "1\n"
    for out in (hr("groups", "list").out, hr("groups", "show", group).out):
        assert "a\\x1b[31mred\\x1b]0;title\\x07\\u202e" in out
        assert not set(out) & {"\x1b", "\x07", "\u202e"}
    assert group in {each["group"] for each in hr("groups", "list", "-o", "json").json}
    assert hr("groups", "delete", group).code == 0
