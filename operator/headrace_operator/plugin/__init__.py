"""`kubectl headrace`: manages Headrace's clusters on Kubernetes from a user's machine.

The plugin runs with the user's rights, and calls kubectl itself, so that contexts, proxies and credential plugins work
as configured.
"""
