"""A cluster in memory: real placement over a trace or a generated burst, in virtual time."""
