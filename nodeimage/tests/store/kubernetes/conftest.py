"""What tests of this folder share."""

from kit.kubernetes_store import store

__all__ = ["store"]
