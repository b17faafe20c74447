"""Failover the home of topics, and what becomes of records that are not of its history."""
