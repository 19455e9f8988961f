"""The one seam to everything outside: time, randomness, records, objects, network, substrate.

Each protocol has a real and a simulated implementation; nothing else in dsec touches the outside.
"""
