"""Scaling and cost in virtual time: a load, a cloud market, a fleet, and rules that grow it."""
