"""Mapping rules compared with Kafka's own tests (SslPrincipalMapperTest), and where we refuse earlier."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.security.principal_mapping import (
    RULES_LIMIT,
    SUBJECT_LIMIT,
    MappingFault,
    PrincipalRefused,
    parse,
)

DUKE = "CN=Duke,OU=ServiceUsers,O=Org,C=US"


@pytest.mark.parametrize(
    "rules",
    [
        "DEFAULT",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, DEFAULT",
        "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/",
        "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L",
        "RULE:^cn=(.?),ou=(.?),dc=(.?),dc=(.?)$/$1@$2/U",
        "RULE:^CN=([^,ADEFLTU,]+)(,.*|$)/$1/",
        "RULE:^CN=([^,DEFAULT,]+)(,.*|$)/$1/",
    ],
)
def test_rules_of_kafkas_tests_are_read(rules: str) -> None:
    assert str(parse(rules)) == rules


@pytest.mark.parametrize(
    ("rules", "position"),
    [
        ("default", 1),
        ("DEFAUL", 1),
        ("DEFAULT/L", 8),
        ("DEFAULT/U", 8),
        ("RULE:CN=(.*?),OU=ServiceUsers.*/$1", 35),
        ("rule:^CN=(.*?),OU=ServiceUsers.*$/$1/", 1),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U", 39),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/L", 36),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/LU", 37),
        ("DEFAULT, RULE:a/b/ DEFAULT", 19),
    ],
)
def test_rules_that_cannot_be_read_say_where(rules: str, position: int) -> None:
    with pytest.raises(MappingFault) as caught:
        parse(rules)
    assert caught.value.position == position
    assert str(caught.value).startswith(f"ssl.principal.mapping.rules: at character {position}: ")


@pytest.mark.parametrize(
    ("subject", "user"),
    [
        (DUKE, "duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        ("cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
    ],
)
def test_the_first_rule_that_fits_makes_the_user(subject: str, user: str) -> None:
    mapping = parse(
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, "
        "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
        "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, "
        "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, "
        "DEFAULT"
    )
    assert mapping.user(subject) == user


@pytest.mark.parametrize(
    ("rules", "split"),
    [
        ("", []),
        ("RULE://", ["RULE://"]),
        ("  RULE:// ,  DEFAULT  ", ["RULE://", "DEFAULT"]),
        ("  RULE:   /     / ,  DEFAULT  ", ["RULE:   /     /", "DEFAULT"]),
        ("  RULE:  /     /U   ,DEFAULT  ", ["RULE:  /     /U", "DEFAULT"]),
        (
            "  RULE:([A-Z]*)/$1/U   ,RULE:([a-z]+)/$1/,   DEFAULT  ",
            ["RULE:([A-Z]*)/$1/U", "RULE:([a-z]+)/$1/", "DEFAULT"],
        ),
        (",   , , ,      , , ,   ", []),
        (",,RULE://,,,DEFAULT,,", ["RULE://", "DEFAULT"]),
        (",  , RULE: /   /    ,,,   DEFAULT, ,   ", ["RULE: /   /", "DEFAULT"]),
        (r"RULE:\/\\\(\)\n\t/\/\//", [r"RULE:\/\\\(\)\n\t/\/\//"]),
        (r"RULE:\**\/+/*/L,RULE:\/*\**/**/", [r"RULE:\**\/+/*/L", r"RULE:\/*\**/**/"]),
        (
            r"RULE:,RULE:,/,RULE:,\//U,RULE:,/RULE:,/,RULE:,RULE:,/L,RULE:,/L,RULE:, DEFAULT, /DEFAULT/,DEFAULT",
            [
                r"RULE:,RULE:,/,RULE:,\//U",
                "RULE:,/RULE:,/",
                "RULE:,RULE:,/L,RULE:,/L",
                "RULE:, DEFAULT, /DEFAULT/",
                "DEFAULT",
            ],
        ),
    ],
)
def test_rules_are_split_as_kafka_splits_them(rules: str, split: list[str]) -> None:
    assert str(parse(rules)) == ", ".join(split)


def test_a_comma_in_a_value_and_in_a_pattern_is_no_end() -> None:
    mapping = parse(r"RULE:^CN=((\\, *|\w)+)(,.*|$)/$1/,DEFAULT")
    assert mapping.user(r"CN=Tkac\, Adam,OU=ITZ,DC=geodis,DC=cz") == r"Tkac\, Adam"


@pytest.mark.parametrize(
    ("rules", "subject", "user"),
    [
        ("RULE:^CN=(.*),OU=(.*)$/$2.$1/", "CN=a,OU=b", "b.a"),
        ("RULE:^CN=(.*)$/$1$4/", "CN=a", "a$4"),
        ("RULE:^CN=(.*)$/$12/", "CN=a", "a2"),
        ("RULE:^CN=(.*)$/$01x$0/", "CN=a", "axCN=a"),
        (r"RULE:^CN=(.*)$/\$1\/\\\x$1/", "CN=a", r"$1/\xa"),
        ("RULE:^CN=(a)?(b)?$/x$1$2/", "CN=b", "xb"),
        (r"RULE:^CN=(.*)\/(.*)$/$2\/$1/", "CN=a/b", "b/a"),
        ("RULE:^" + "(.)" * 11 + "$/$11$1/", "abcdefghijk", "ka"),
        # Each match is replaced, as by Java's replaceAll; these are Kafka 4.3's results.
        ("RULE:.*/admin/", "CN=a", "adminadmin"),
        ("RULE:(.*?)/x/", "ab", "xaxbx"),
        ("RULE:a*/x/", "aa", "xx"),
        ("RULE:(.)*/<$1>/", "ab", "<b><>"),
        ("RULE:^cn=(.*)$/$1/L", "cn=ÄRGER", "ärger"),
        ("RULE:(?i)^cn=([a-z]+)$/$1/U", "CN=straße", None),
        (r"RULE:^CN=(\w+)$/$1/", "CN=ä", None),
        ("RULE:CN=a/b/", "CN=ab", None),
        ("", DUKE, None),
        ("RULE:CN=(.*)/$1/, RULE:^.*a$/$0/", "OU=a", "OU=a"),
    ],
)
def test_what_a_replacement_makes(rules: str, subject: str, user: str | None) -> None:
    if user is not None:
        assert parse(rules).user(subject) == user
    else:
        with pytest.raises(PrincipalRefused, match=r"^no rule of .* fits the subject"):
            parse(rules).user(subject)


@pytest.mark.parametrize(
    ("rules", "position"),
    [
        ("RULE:CN=.*/$1/", 12),
        ("RULE:CN=(.*)/$1$/", 16),
        ("RULE:CN=(.*)/${name}/", 14),
        ("RULE:CN=(.*/$1/", 9),
        ("RULE:CN=(?<name>.*)/$1/", 10),
        (r"RULE:CN=\p{L}/x/", 9),
        ("RULE:CN=[a-z&&[^b]]/x/", 13),
        ("RULE:CN=[a[b]]/x/", 11),
        ("RULE:a{99999999999}/x/", 6),
        ("RULE:" + "a" * RULES_LIMIT, RULES_LIMIT + 1),
        ("RULE:" + "(" * 5000 + ")" * 5000 + "//", 6),
    ],
)
def test_what_kafka_would_fail_to_apply_or_python_read_otherwise_is_refused_at_once(rules: str, position: int) -> None:
    with pytest.raises(MappingFault) as caught:
        parse(rules)
    assert caught.value.position == position


@pytest.mark.parametrize("pattern", [r"[\[a]", "[]a]", "[^]a]", r"[a\]&]", r"\[&&"])
def test_classes_that_mean_the_same_in_java_are_read(pattern: str) -> None:
    assert str(parse(f"RULE:{pattern}/x/")) == f"RULE:{pattern}/x/"


@pytest.mark.parametrize(
    ("rules", "subject", "refusal"),
    [
        ("DEFAULT", "", "the user name '' is empty"),
        ("RULE:^CN=(.*)$/$1/", "CN=ANONYMOUS", "kept for clients that have proved nothing"),
        ("RULE:^CN=(.*)$/$1/", "CN=*", "means everybody"),
        ("RULE:^CN=(.*)$/$1/", "CN=" + "a" * 250, "has 250 characters"),
        ("DEFAULT", "CN=a\x07", r"unprintable character U\+0007"),
        ("RULE:^CN=(.*)$/$1/, DEFAULT", "CN=admin\n", "has more than one line"),
        ("RULE:.*/alice/", "CN=a\u2028", "has more than one line"),
        ("DEFAULT", "x" * (SUBJECT_LIMIT + 1), "has 4097 characters, at most 4096 are allowed"),
    ],
)
def test_a_subject_that_makes_nobody_is_refused(rules: str, subject: str, refusal: str) -> None:
    with pytest.raises(PrincipalRefused, match=refusal) as caught:
        parse(rules).user(subject)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_the_longest_subject_is_put_to_the_patterns() -> None:
    subject = "CN=alice," + "x" * (SUBJECT_LIMIT - 9)
    assert parse("RULE:^CN=([^,]*),.*$/$1/").user(subject) == "alice"


@given(st.text(alphabet="RULE:DFAT/\\$1(),. L[]&", max_size=30))
def test_any_rules_are_read_or_refused_with_a_place(rules: str) -> None:
    try:
        mapping = parse(rules)
    except MappingFault as fault:
        position, message = fault.position, str(fault)
    else:
        position, message = 1, ""
        assert str(parse(str(mapping))) == str(mapping)
    assert 1 <= position <= len(rules) + 1
    assert message.isprintable()


@given(st.text(max_size=60).filter(lambda text: text.isprintable()))
def test_default_takes_the_subject_as_it_is(subject: str) -> None:
    try:
        assert parse("DEFAULT").user(subject) == subject
    except PrincipalRefused:
        assert subject != subject.strip() or subject in ("", "*")
