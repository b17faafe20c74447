"""Talk between nodes: framed messages over TCP, with a handshake, calls and streams. Knows nothing of containers."""
