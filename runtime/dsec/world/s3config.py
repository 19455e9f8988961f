"""Which bucket of which S3 server, and with whose keys: apart from the clients, which are heavy."""

from dataclasses import dataclass

CONNECT_SECONDS = 5


@dataclass(frozen=True, slots=True)
class S3Config:
    """One bucket. Empty keys: the environment's own identity."""

    bucket: str
    endpoint: str = ""
    region: str = "us-east-1"
    access_key: str = ""
    secret_key: str = ""
