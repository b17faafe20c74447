"""Keeps librdkafka's own log lines off stderr: lost connections are expected in the demo, and shown by the story."""

import logging
from collections.abc import Mapping
from typing import Any

_silent = logging.getLogger("headrace_spark.demo.librdkafka")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


def quiet(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return `settings` with a logger that discards librdkafka's lines."""
    return {"logger": _silent, **settings}
