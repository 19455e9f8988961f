"""The HTTP API: authentication, authorisation, reads, proxy, agents' entry."""
