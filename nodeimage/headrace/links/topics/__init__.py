"""Topics and committed offsets of a link, kept in line with its source."""
