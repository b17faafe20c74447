"""`headrace features` on a running node: the level is shown, held, released, and raised only as far as possible."""

from kit.commands_on_node import Headrace


def test_the_level_is_shown_with_what_the_nodes_support(hr: Headrace) -> None:
    found = hr("features", "show", "-o", "json").json
    lowest, highest = found["this_version"]
    assert [(node["oldest_level"], node["newest_level"]) for node in found["nodes"]] == [(lowest, highest)]
    assert found["level"] == found["supported_by_all"] == highest
    shown = hr("features", "show").out
    assert f"supports {lowest} to {highest}" in shown
    assert "held" not in shown, "what is not so is not shown"


def test_the_level_is_held_where_it_is_and_let_go_again(hr: Headrace) -> None:
    held = hr("features", "hold", "-o", "json").json
    assert held["held_at"] == held["level"]
    assert hr("features", "hold", "--off", "-o", "json").json["held_at"] is None


def test_how_long_it_waits_is_said_as_people_write_it(hr: Headrace) -> None:
    before = hr("features", "show", "-o", "json").json["raised_by_itself_after_s"]
    assert hr("features", "wait", "90min", "-o", "json").json["raised_by_itself_after_s"] == 5400
    assert "1h30min" in hr("features", "show").out
    assert hr("features", "wait", f"{before:.0f}s", "-o", "json").json["raised_by_itself_after_s"] == before


def test_a_raise_that_is_only_checked_changes_nothing_and_one_that_cannot_be_is_refused(hr: Headrace) -> None:
    before = hr("features", "show", "-o", "json").json
    checked = hr("features", "upgrade", "--check")
    assert "nothing was changed" in checked.err
    assert "supports the levels" in hr("features", "upgrade", "77").refused()
    assert hr("features", "show", "-o", "json").json == before
