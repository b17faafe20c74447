"""Answers to the links of other clusters that copy from this one."""
