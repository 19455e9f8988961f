"""Keys that never leave their service: AWS KMS by boto3, in threads."""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

SECONDS = 10
"""A key that does not come within this time keeps no saver waiting longer."""

REFUSED = frozenset(
    {
        *("InvalidCiphertextException", "IncorrectKeyException", "InvalidKeyUsageException"),
        *("AccessDeniedException", "DisabledException", "NotFoundException"),
        *("KMSInvalidStateException", "ValidationException"),
    }
)
"""Codes that a repeat does not change."""


class KmsError(Exception):
    """The service did not answer. Safe to retry."""


class KmsRefusedError(Exception):
    """The service refuses for good: wrong key, wrong context, no right, or a disabled key."""


class Kms(Protocol):
    """What is asked of a key service. Both are without side effects and may be repeated."""

    async def encrypt(self, key: str, data: bytes, context: Mapping[str, str]) -> bytes:
        """Encrypt at most 4096 bytes, bound to a context. Raises KmsError, KmsRefusedError."""
        ...

    async def decrypt(self, key: str, data: bytes, context: Mapping[str, str]) -> bytes:
        """Decrypt what was bound to the same context. Raises KmsError, KmsRefusedError."""
        ...


class AwsKms:
    """The KMS of one region, with the identity of the environment."""

    def __init__(self, region: str, endpoint: str = "") -> None:
        # heavy, and who keeps keys in a file needs none of it
        import boto3
        from botocore.config import Config

        self._client: Any = boto3.client(
            "kms",
            region_name=region,
            endpoint_url=endpoint or None,
            config=Config(  # type: ignore[no-untyped-call]
                connect_timeout=SECONDS, read_timeout=SECONDS, retries={"total_max_attempts": 3}
            ),
        )

    async def encrypt(self, key: str, data: bytes, context: Mapping[str, str]) -> bytes:
        """Encrypt at most 4096 bytes, bound to a context. Raises KmsError, KmsRefusedError."""
        return await self._call(
            "encrypt", "CiphertextBlob", KeyId=key, Plaintext=data, EncryptionContext=dict(context)
        )

    async def decrypt(self, key: str, data: bytes, context: Mapping[str, str]) -> bytes:
        """Decrypt what was bound to the same context. Raises KmsError, KmsRefusedError."""
        return await self._call(
            "decrypt", "Plaintext", KeyId=key, CiphertextBlob=data, EncryptionContext=dict(context)
        )

    async def _call(self, method: str, field: str, **arguments: object) -> bytes:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer = await asyncio.to_thread(getattr(self._client, method), **arguments)
        except ClientError as problem:
            error = problem.response.get("Error", {})
            code = str(error.get("Code", ""))
            # the arguments hold a key: what is said is the code alone
            said = f"{method} with {arguments['KeyId']}: {code}"
            if code in REFUSED:
                raise KmsRefusedError(said) from None
            raise KmsError(said) from None
        except BotoCoreError as problem:
            raise KmsError(f"{method}: {type(problem).__name__}") from None
        return bytes(answer[field])
