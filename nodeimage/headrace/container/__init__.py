"""Containers: replicated logs, the unit of replication, failover and placement. Knows `log`, not the protocol."""
