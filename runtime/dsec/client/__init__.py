"""The SDK: the same verbs, sync and async."""
