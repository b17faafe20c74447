"""Tests of the objects that are built from each resource."""
