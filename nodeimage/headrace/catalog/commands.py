"""All commands of the catalog, and their encoding (command.py)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Union, cast

import msgspec

from headrace.base.errors import NewerFormat
from headrace.catalog import (
    access,
    chains,
    committed_offsets,
    deletions,
    feature_level,
    groups,
    homes,
    links,
    quotas,
    recovery,
    streams,
    topics,
    users,
)
from headrace.catalog.command import CatalogCommand

_FAMILIES: Final = (
    streams,
    topics,
    deletions,
    chains,
    groups,
    committed_offsets,
    links,
    homes,
    users,
    access,
    quotas,
    recovery,
    feature_level,
)

COMMANDS: Final[Mapping[str, type[CatalogCommand[Any]]]] = MappingProxyType(
    {
        str(each.__struct_config__.tag): each
        for family in _FAMILIES
        for each in vars(family).values()
        if isinstance(each, type) and issubclass(each, CatalogCommand) and each.__module__ == family.__name__
    }
)
"""Command classes by their name in the log."""

_encoder = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Union[tuple(COMMANDS.values())])  # noqa: UP007  # known at run time only


def encode(command: CatalogCommand[Any]) -> bytes:
    """The payload of a command's frame. Raises ValueError for text that is not valid Unicode (lone surrogates)."""
    return _encoder.encode(command)


def decode(payload: bytes | memoryview) -> CatalogCommand[Any]:
    """The command in a frame's payload. Raises NewerFormat if this version does not know it."""
    try:
        return cast(CatalogCommand[Any], _decoder.decode(payload))
    except msgspec.DecodeError as error:
        raise NewerFormat(
            f"a catalog command is unknown to this version ({error}); use the version that wrote this folder"
        ) from error
