"""Communication between nodes: framed messages over TCP, with handshake, calls and streams. Knows nothing of
containers."""
