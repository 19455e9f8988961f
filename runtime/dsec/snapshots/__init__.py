"""Snapshots: a content-addressed, encrypted store of sandbox state on any object store."""
