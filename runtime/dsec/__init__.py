"""Elastic sandboxes for large-scale agent training."""

__version__ = "0.1.0"
