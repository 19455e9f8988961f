"""Elasticity, pure: what is wanted of replicas and of nodes. No clock, no I/O."""
