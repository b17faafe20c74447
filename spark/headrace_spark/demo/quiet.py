"""librdkafka without its own lines on stderr: a lost connection is expected here, and shown by the story."""

import logging
from collections.abc import Mapping
from typing import Any

_silent = logging.getLogger("headrace_spark.demo.librdkafka")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


def quiet(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` with a logger that keeps librdkafka's lines off the terminal."""
    return {"logger": _silent, **settings}
