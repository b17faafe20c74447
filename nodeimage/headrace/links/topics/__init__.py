"""Keeps the topics and committed offsets of a link in line with its source."""
