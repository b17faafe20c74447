"""SASL, the server's side: SCRAM-SHA-256, SCRAM-SHA-512, PLAIN and OAUTHBEARER.

Nothing here opens a socket but `jwks_http`. `exchange` is what a connection talks to.
"""
