"""Links: streams that are copied between clusters at the same offsets (docs/links.md)."""
