"""The embedded cluster: storage nodes as processes of one machine, on loopback, in one folder (`headrace up`)."""
