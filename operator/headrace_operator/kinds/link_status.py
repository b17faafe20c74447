"""The status of a ReplicationLink, from its cluster's view of the link. Pure.

The conditions `CaughtUp` and `NothingDiverged` do not affect `Ready`: a link that lags, or has set records aside,
works.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from headrace_operator.specs import LinkSpec
from headrace_operator.status import Condition, instant

TYPES: Final = ("Reconciled", "Connected", "TopicsAccepted", "CaughtUp", "NothingDiverged")
ASIDE: Final = ("CaughtUp", "NothingDiverged")
PAUSED: Final = "Paused"
CONNECTING_S: Final = 10.0
"""Seconds that a connected link may be reconnecting before its condition changes: a node was restarted."""
BEHIND_S: Final = 30.0
"""Lag in seconds at which a link that had caught up is reported as behind: small lags are normal."""
JUST_CHANGED: Final = Condition("CaughtUp", False, "CatchingUp", "the spec has changed: the next look shows the result")
"""The condition at the first look after a change: the link may not have applied the change yet, and still show its
former state.
"""
MAX_LISTED: Final = 20
MAX_NAMED: Final = 3
MAX_REASON: Final = 500

Shown = Mapping[str, Any]
"""A link, as `link.show` reports it."""


class Turn(NamedTuple):
    """An event about a change."""

    reason: str
    message: str
    warning: bool = False


def judge(shown: Shown, before: Mapping[str, Any], *, now: float) -> list[Condition]:
    """Return the conditions besides Reconciled; those that are unknown now are left out. `before`: the last status."""
    connected = _connected(shown, _condition(before, "Connected"), now)
    found = [connected, _diverged(shown)]
    if connected.ok:
        found += [_accepted(shown), _caught_up(shown, _condition(before, "CaughtUp"))]
    return found


def _connected(shown: Shown, was: Mapping[str, Any], now: float) -> Condition:
    error = str(shown.get("last_error") or "")
    match shown["state"]:
        case "Paused":
            return Condition("Connected", False, "LinkPaused", "spec.paused is set")
        case "Failed":
            return Condition(
                "Connected", False, "LinkFailed", error or "the link failed, and the cluster reports no error"
            )
        case "Connecting":
            since = shown.get("since_ms")
            if was.get("status") == "True" and since is not None and now - since / 1000 < CONNECTING_S:
                return Condition("Connected", True, "Answers")
            if error:
                return Condition("Connected", False, "SourceSilent", error)
            return Condition("Connected", None, "Connecting", "the source has not answered yet")
        case _:
            return Condition("Connected", True, "Answers")


def _accepted(shown: Shown) -> Condition:
    refused = shown.get("refused") or []
    if not refused:
        return Condition("TopicsAccepted", True, "AllAccepted")
    some = "; ".join(f"{each['topic']}: {str(each['reason'])[:MAX_REASON]}" for each in refused[:MAX_NAMED])
    return Condition(
        "TopicsAccepted",
        False,
        "TopicsRefused",
        f"{some}{_and_more(refused)}: these are not copied, or not exactly as they are; all others are copied",
    )


def _caught_up(shown: Shown, was: Mapping[str, Any]) -> Condition:
    lag = shown.get("lag_seconds") or 0.0
    if shown["state"] == "CaughtUp" or (was.get("status") == "True" and lag < BEHIND_S):
        return Condition("CaughtUp", True, "CaughtUp")
    return Condition("CaughtUp", False, "CatchingUp", "the source has records that are not here yet: see lagRecords")


def _diverged(shown: Shown) -> Condition:
    diverged = _by_topic(shown)
    if not diverged:
        return Condition("NothingDiverged", True, "NothingDiverged")
    some = "; ".join(f"{each['records']} of {each['topic']} in {each['into']}" for each in diverged[:MAX_NAMED])
    return Condition(
        "NothingDiverged",
        False,
        "RecordsDiverged",
        f"records that another home did not have were set aside: {some}{_and_more(diverged)}; process them, then"
        " delete that topic",
    )


def _by_topic(shown: Shown) -> list[dict[str, Any]]:
    """Return the records that were set aside, summed over the partitions of each topic."""
    found: dict[str, dict[str, Any]] = {}
    for each in shown.get("diverged") or []:
        of_topic = found.setdefault(str(each["into"]), {"topic": each["topic"], "into": each["into"], "records": 0})
        of_topic["records"] += each["records"]
    return list(found.values())


def _and_more(found: Sequence[object]) -> str:
    return f"; and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""


def figures(shown: Shown, spec: LinkSpec) -> dict[str, Any]:
    """Return the fields of the status; None for a field that is unknown now."""
    refused, diverged = shown.get("refused") or [], _by_topic(shown)
    lag, groups = shown.get("lag_records"), shown.get("groups") or {}
    at = shown.get("last_error_ms")
    return {
        "link": shown["name"],
        "state": shown["state"],
        "sourceCluster": shown.get("source_cluster"),
        "lagRecords": lag,
        "lagBytes": shown.get("lag_bytes"),
        "lagSeconds": shown.get("lag_seconds"),
        "groups": [_group(each, groups.get(each) or {}) for each in dict.fromkeys(spec.topics)]
        if lag is not None
        else None,
        "partitions": shown.get("partitions"),
        "refusedTopics": len(refused),
        "refused": [
            {"topic": each["topic"], "reason": str(each["reason"])[:MAX_REASON]} for each in refused[:MAX_LISTED]
        ],
        "divergedRecords": sum(each["records"] for each in diverged),
        "diverged": diverged[:MAX_LISTED],
        "lastError": str(shown.get("last_error") or "")[:2000],
        "lastErrorAt": instant(at / 1000) if at else "",
    }


def _group(pattern: str, lag: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "topics": pattern,
        "lagRecords": lag.get("records", 0),
        "lagBytes": lag.get("bytes", 0),
        "lagSeconds": lag.get("seconds", 0.0),
    }


def turns(before: Mapping[str, Any], conditions: Sequence[Condition], stream: str) -> list[Turn]:
    """Return the events for changes since the last status."""
    now = {each.type: each for each in conditions}
    found = []
    was, link = _condition(before, "Connected"), now.get("Connected")
    if link is not None:
        was_paused, paused = was.get("reason") == "LinkPaused", link.reason == "LinkPaused"
        if paused and not was_paused:
            found.append(Turn("LinkPaused", f"nothing is copied into {stream} until spec.paused is unset"))
        if was_paused and not paused:
            found.append(Turn("LinkResumed", f"{stream} is being copied into again"))
        if link.ok and not was_paused and (was.get("status") == "False" or was.get("reason") == "Connecting"):
            found.append(Turn("SourceConnected", "the source answers"))
        if link.ok is False and not paused and was.get("status") == "True":
            found.append(Turn("SourceLost", f"{link.message}; retrying", warning=True))
    if (each := now.get("TopicsAccepted")) is not None and _is_news(each, before):
        found.append(Turn("TopicsRefused", each.message, warning=True))
    if (each := now.get("NothingDiverged")) is not None and _is_news(each, before):
        found.append(Turn("RecordsDiverged", each.message, warning=True))
    return found


def _is_news(found: Condition, before: Mapping[str, Any]) -> bool:
    """Return whether a condition is False, and was not so before with the same message."""
    return found.ok is False and _condition(before, found.type).get("message") != found.message


class Homes(NamedTuple):
    """How many of a stream's topics have their home in the cluster, and elsewhere."""

    here: int
    elsewhere: int
    taken: int = 0
    """How many of the topics at home here moved here from elsewhere."""


def moved(before: Homes, now: Homes, stream: str) -> Turn | None:
    """Return the event for homes that have moved; None if none has.

    Creating or deleting a topic changes only one of `here` and `elsewhere`. So does a topic that was copied and moved
    its home here since `before`; `taken` detects it.
    """
    if (now.here - before.here) * (now.elsewhere - before.elsewhere) >= 0 and now.taken <= before.taken:
        return None
    return Turn(
        "HomeMoved",
        f"{now.here} of the {now.here + now.elsewhere} topics of {stream} have their home in this cluster, and"
        f" {now.elsewhere} elsewhere; before, {before.here} had it here and {before.elsewhere} elsewhere",
    )


def kept(before: Mapping[str, Any]) -> list[Condition]:
    """Return the conditions of the last status, if there is nothing new to report."""
    states = {"True": True, "False": False}
    return [
        Condition(each["type"], states.get(each["status"]), each["reason"], each["message"])
        for each in before.get("conditions", [])
        if each["type"] in TYPES
    ]


def _condition(status: Mapping[str, Any], type: str) -> Mapping[str, Any]:
    return next((each for each in status.get("conditions", []) if each["type"] == type), {})
