"""`kubectl headrace`: Headrace's clusters on Kubernetes, for whoever looks after them with kubectl.

Runs on that person's machine, with the rights that kubectl has there, and by way of kubectl itself: contexts, proxies
and plugins that fetch credentials are as they are there.
"""
