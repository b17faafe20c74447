"""Makes catalog_kit importable by the tests of this folder."""
