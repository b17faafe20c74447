"""One module a kind: what its resources ask for, made so, and what came of it, said."""
