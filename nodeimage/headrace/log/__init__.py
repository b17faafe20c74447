"""The log of one container: chunks, frames, index, recovery, regroup, scrub. See docs/storage-format.md.

Knows nothing of the network, the catalog or replication, and only the fixed fields of a record batch. The entry point
is `ContainerLog` in container_log.py.
"""
