"""The SDK: the verbs of the command line for Python programs, asynchronous and synchronous.

`Client` and `AsyncClient` have the same methods; one call runs a batch and returns its results::

    from dsec.client import Client

    with Client() as dsec:
        for result in dsec.run(count=3, image="base", command=["python3", "-c", "print(1)"]):
            print(result.identity.index, result.end.reason, result.end.stdout)
"""

from dsec.client._async import AsyncClient
from dsec.client._sync import Client
from dsec.client.context import Context, load, save
from dsec.client.errors import (
    BusyError,
    ConflictError,
    ContextError,
    DeniedError,
    DsecError,
    InvalidError,
    NotFoundError,
    ServerError,
    TruncatedStreamError,
    UnknownOutcomeError,
    UnreachableError,
    WaitTimeoutError,
)

__all__ = [
    "AsyncClient",
    "BusyError",
    "Client",
    "ConflictError",
    "Context",
    "ContextError",
    "DeniedError",
    "DsecError",
    "InvalidError",
    "NotFoundError",
    "ServerError",
    "TruncatedStreamError",
    "UnknownOutcomeError",
    "UnreachableError",
    "WaitTimeoutError",
    "load",
    "save",
]
