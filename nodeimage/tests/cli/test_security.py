"""`headrace security`, and `headrace status` about it, on a running node without security."""

from kit.commands_on_node import Headrace


def test_it_is_off_and_the_status_says_so_in_one_line(hr: Headrace) -> None:
    assert hr("security", "show", "-o", "json").json["on"] is False
    assert "security is off: everybody who reaches a listener may do everything" in hr("security", "show").out
    (line,) = [line for line in hr("status").out.splitlines() if line.startswith("security")]
    assert line.endswith("security is off: everybody who reaches a listener may do everything; docs/security.md")
    assert hr("status", "-o", "json").json["security"]["on"] is False


def test_it_is_not_turned_on_where_everybody_would_be_locked_out(hr: Headrace) -> None:
    assert "everybody would be locked out" in hr("security", "on").refused()
    assert hr("security", "show", "-o", "json").json["on"] is False


def test_it_is_turned_off_only_by_who_says_what_that_means(hr: Headrace) -> None:
    assert "--open-everything" in hr("security", "off").refused()
    assert hr("security", "off", "--open-everything", "-o", "json").json["on"] is False
