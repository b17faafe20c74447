"""Certificates for servers of key sets."""

from kit.certificates import certificates

__all__ = ["certificates"]
