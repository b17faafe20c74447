"""Pulling: the state of a link on one node, fetching and appending."""
