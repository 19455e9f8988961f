"""One reconciler per record, in one readable list."""
