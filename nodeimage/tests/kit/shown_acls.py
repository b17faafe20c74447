"""Access rules of a few objects, and the ACLs that represent them."""

from headrace.security.access_rules import AccessRules, Kind, Permission, Rule
from headrace.security.kafka_acls import Acl, Object, Resource, rows

STREAM = Object(Kind.STREAM, "/s")
TOPIC = Object(Kind.TOPIC, "/s:t")
CLUSTER = Object(Kind.CLUSTER, "")
GROUP = Object(Kind.GROUP, "ops-1")
GROUPS = Object(Kind.GROUP_PREFIX, "ops-")
ADMINS = Rule(Kind.CLUSTER, "", Permission.ADMIN, "u:root")


def rules_of(*rules: tuple[Object, Permission, str]) -> AccessRules:
    """The rules, with `root` as the administrator."""
    return AccessRules.of([ADMINS, *(Rule(on.kind, on.name, of, text) for on, of, text in rules)], on=True)


def all_of(rules: AccessRules) -> list[Acl]:
    """Every row, in order."""
    found = list(rows(rules))
    assert len(found) == len(set(found)), "each row once"
    return sorted(found)


def lines(rules: AccessRules) -> list[str]:
    """All rows except the administrators'."""
    return [
        f"{acl.resource.name} {acl.pattern.name} {acl.name} {acl.principal} {acl.operation.name}"
        for acl in all_of(rules)
        if acl.resource is not Resource.CLUSTER
    ]
