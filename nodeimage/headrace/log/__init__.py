"""The log of one container: chunks, frames, index, recovery, regroup, scrub. See docs/storage-format.md.

Knows nothing of the network, the catalog or replication, and of a record batch only its fixed places. The way in is
`ContainerLog` in container_log.py.
"""
