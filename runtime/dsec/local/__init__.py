"""The embedded single-machine Kubernetes, standalone mode and the tool chain."""
