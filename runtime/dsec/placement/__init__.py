"""Which node gets which replica: pure functions over plain data."""
