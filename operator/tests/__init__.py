"""A package, so that pytest does not name these modules `operator.…`, which is the standard library's."""
