"""Models of records, documents and wire messages; imports nothing else of dsec."""
