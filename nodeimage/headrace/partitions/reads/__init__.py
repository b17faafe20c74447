"""Reads of stored records: from this node's disk, and from other nodes."""
