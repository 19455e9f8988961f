"""The words in which a machine proves to the gateway who it is: shared by agent and gateway."""

PREFIX = "aws."
"""A bearer token that begins so is a signed STS call, in URL-safe base64 of JSON {url, headers}."""
AUDIENCE_HEADER = "x-dsec-gateway"
NODE_HEADER = "x-dsec-node"
REQUEST_HEADER = "x-dsec-request"
"""SHA-256 of the certificate request."""
SECONDS = 60
"""How long a signed call is good for."""
