"""Feature levels and the formats that go with them."""

from headrace.base.levels import FORMAT, NEWEST, OLDEST, Level, format_of, level_of


def test_each_level_has_a_format_and_a_higher_one_no_older_format() -> None:
    formats = [format_of(level) for level in sorted(Level)]
    assert formats == sorted(formats)
    assert formats[0] == 1
    assert format_of(NEWEST) == FORMAT
    assert OLDEST is Level.ORIGINAL


def test_a_level_of_a_newer_version_has_the_newest_format_that_is_known() -> None:
    assert format_of(max(Level) + 100) == format_of(max(Level))


def test_a_format_tells_the_level_that_it_is_for() -> None:
    assert [level_of(format_of(level)) for level in sorted(Level)] == sorted(Level)
    assert level_of(FORMAT + 1) == NEWEST
