"""Codes of the AWS API in families: each family has one kind of failure and one scope.

A code that no family knows is not taken for a lack of capacity, nor for a fault of ours: it is
unknown, and what is unknown is left alone for a while, as a lack of capacity is.
"""

from dsec.providers.provider import Failure, FailureKind, Scope
from dsec.world.ec2 import CloudError

MISMATCH = "IdempotentParameterMismatch"
"""The token is known with other parameters: the purchase has been made."""
ABSENT = frozenset(
    {"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed", "InvalidVolume.NotFound"}
)
TOO_MANY_REQUESTS = 429

_CAPACITY = frozenset(
    {
        "InsufficientInstanceCapacity",
        "InsufficientHostCapacity",
        "InsufficientReservedInstanceCapacity",
        "InsufficientCapacity",
        "InsufficientCapacityOnHost",
        "InsufficientFreeAddressesInSubnet",
        "InsufficientVolumeCapacity",
        "ReservationCapacityExceeded",
        "SpotMaxPriceTooLow",
        "UnfulfillableCapacity",
    }
)
_THROTTLED = frozenset(
    {
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "PriorRequestNotComplete",
        "SlowDown",
        "TooManyRequestsException",
    }
)
_LIMIT = frozenset({"MaxSpotInstanceCountExceeded", "PendingVerification"})
_REFUSED = frozenset(
    {
        "AuthFailure",
        "Blocked",
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "MalformedPolicyDocument",
        "NotAuthorized",
        "OptInRequired",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnauthorizedOperation",
        "UnknownParameter",
        "UnrecognizedClientException",
        "ValidationError",
        "credentials",
        "parameter",
    }
)
_REFUSED_BEGINS = ("AccessDenied", "Invalid", "Missing")
_OFFERING_REFUSED_BEGINS = ("Unsupported",)
_SILENT = frozenset({"connection", "timeout"})


def failure_of(error: CloudError, *, quota: str = "") -> Failure:
    """Return the typed failure of an error; `quota` names the quota that the call falls under."""
    kind, scope = _family(error)
    return Failure(
        kind,
        scope,
        error.code,
        _WORDS[kind].format(code=error.code, message=error.message),
        unsure=error.unsure and kind is FailureKind.UNKNOWN,
        quota=quota if scope is Scope.QUOTA else "",
    )


def _family(error: CloudError) -> tuple[FailureKind, Scope]:
    """Return the first family that has the code."""
    code = error.code
    families = (
        (
            code in _THROTTLED or "Throttl" in code or error.status == TOO_MANY_REQUESTS,
            (FailureKind.THROTTLED, Scope.PROVIDER),
        ),
        (code in _CAPACITY, (FailureKind.CAPACITY, Scope.OFFERING)),
        (
            code in _LIMIT or code.endswith("LimitExceeded"),
            (FailureKind.LIMIT, Scope.QUOTA),
        ),
        (code.startswith(_OFFERING_REFUSED_BEGINS), (FailureKind.REFUSED, Scope.OFFERING)),
        (
            code in _REFUSED or code.startswith(_REFUSED_BEGINS),
            (FailureKind.REFUSED, Scope.PROVIDER),
        ),
        (code in _SILENT, (FailureKind.UNKNOWN, Scope.PROVIDER)),
    )
    return next(
        (family for holds, family in families if holds), (FailureKind.UNKNOWN, Scope.OFFERING)
    )


_WORDS = {
    FailureKind.CAPACITY: "AWS has none of these now ({code})",
    FailureKind.THROTTLED: "AWS takes no more calls of this account for a while ({code})",
    FailureKind.LIMIT: "a quota of the account is used up ({code}): {message}",
    FailureKind.REFUSED: "AWS refuses the call until a setting or a right changes ({code}): "
    "{message}",
    FailureKind.UNKNOWN: "AWS gave no clear answer ({code}): {message}",
}
