"""Links: streams that are copied between clusters at the same offsets (DESIGN section 9)."""
