"""Failover of topics' homes, and quarantine of records that are not part of their history."""
