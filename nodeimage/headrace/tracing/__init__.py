"""Traces of what seldom happens and takes long: admin calls, changes of leaders, rolls, links. Off unless asked for."""
