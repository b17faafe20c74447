"""Certificates, for those who serve key sets."""

from kit.certificates import certificates

__all__ = ["certificates"]
