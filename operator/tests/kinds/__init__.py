"""Tests of each kind of resource."""
