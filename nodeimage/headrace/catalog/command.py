"""What all commands of the catalog are made of; the rules for changing one stand in commands.py."""

import msgspec


class Item(msgspec.Struct, frozen=True, array_like=True):
    """An element of a command's list."""


class CatalogCommand(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A change of the catalog."""
