"""A package, so that pytest does not import these tests as `operator.tests` over the standard library's `operator`."""
