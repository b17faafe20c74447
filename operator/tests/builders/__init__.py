"""Tests of what is made of each resource."""
