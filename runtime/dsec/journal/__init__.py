"""Append-only history and the fenced log of key bindings."""
