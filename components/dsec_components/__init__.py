"""Pulumi components that declare a dsec platform."""
