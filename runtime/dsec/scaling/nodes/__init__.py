"""Nodes: what is needed, what to buy for it, what to give back, and why. Pure."""
