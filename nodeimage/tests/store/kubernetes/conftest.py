"""What the tests in this folder share."""

from kit.kubernetes_store import store

__all__ = ["store"]
