"""SASL, the server's side: SCRAM-SHA-256, SCRAM-SHA-512, PLAIN and OAUTHBEARER.

Only `jwks_http` opens a socket. Connections use `exchange`.
"""
