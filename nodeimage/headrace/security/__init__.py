"""Authentication and authorization: who a client is, how it proves that, and what it may do."""
