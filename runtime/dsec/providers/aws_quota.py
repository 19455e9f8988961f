"""The account's quotas of running vCPUs, read before a purchase is tried.

What cannot be read (no right, no answer) forbids nothing: the purchase itself then tells.
"""

from dataclasses import dataclass

from dsec.providers.aws_calls import Calls
from dsec.providers.provider import Offered
from dsec.world.clock import Clock
from dsec.world.ec2 import CloudError

QUOTA_SECONDS, USAGE_SECONDS = 600.0, 20.0
"""How long a quota, and what is used of it, are taken as read."""

_FAMILIES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("dl",), "L-6E869C2A", "L-85EED4F7"),
    (("trn",), "L-2C3B7624", "L-6B0D517C"),
    (("inf",), "L-1945791B", "L-B5D1601B"),
    (("g", "gr", "vt"), "L-DB2E81BA", "L-3819A6DF"),
    (("p5",), "L-417A185B", "L-C4BD4855"),
    (("p",), "L-417A185B", "L-7212CCBC"),
    (("hpc",), "L-F7808C92", ""),
    (("f",), "L-74FC7D96", "L-88CF9481"),
    (("x",), "L-7295265B", "L-E3A00192"),
    (("u-", "u7"), "L-43DA4232", ""),
)
"""Prefixes of instance families with the codes of their quota: on demand, spot."""
_STANDARD = ("L-1216C47A", "L-34B43A08")
"""A, C, D, H, I, M, R, T and Z."""


def quota_of(offering: Offered) -> str:
    """Return the code of the quota that an offering falls under; empty: none is known."""
    spot = str(offering.market) == "spot"
    return _code(offering.instance_type, spot=spot)


def _code(instance_type: str, *, spot: bool) -> str:
    family = instance_type.partition(".")[0]
    for prefixes, on_demand, of_spot in _FAMILIES:
        if any(_belongs(family, prefix) for prefix in prefixes):
            return of_spot if spot else on_demand
    return _STANDARD[spot]


def _belongs(family: str, prefix: str) -> bool:
    """Say whether a family is of a series: `g5` is of `g`, `im4gn` is not of `i`."""
    rest = family.removeprefix(prefix)
    return rest != family and (not prefix.isalpha() or rest[:1].isdecimal())


@dataclass(slots=True)
class _Read:
    at: float
    amount: float


class Quotas:
    """What is left of the quotas of one region. Caches are short, and losing them costs a call."""

    def __init__(self, calls: Calls, clock: Clock) -> None:
        self._calls = calls
        self._clock = clock
        self._limits: dict[str, _Read] = {}
        self._sizes: dict[str, int] = {}
        self._used: dict[str, float] = {}
        self._used_at: float | None = None

    async def room(self, offering: Offered) -> int | None:
        """Return how many nodes of an offering the account may still start; None: not known."""
        code = quota_of(offering)
        if not code:
            return None
        try:
            limit = await self._limit(code)
            await self._read_usage()
            (size,) = await self._vcpus([offering.instance_type])
        except (CloudError, ValueError, KeyError):
            return None
        return max(0, int((limit - self._used.get(code, 0.0)) // size))

    def forget_usage(self) -> None:
        """Read anew what is used, next time: a purchase has changed it."""
        self._used_at = None

    async def _limit(self, code: str) -> float:
        known, now = self._limits.get(code), self._clock.monotonic()
        if known is None or now - known.at > QUOTA_SECONDS:
            answer = await self._calls.call(
                "service-quotas", "get_service_quota", ServiceCode="ec2", QuotaCode=code
            )
            known = self._limits[code] = _Read(now, float(answer["Quota"]["Value"]))
        return known.amount

    async def _read_usage(self) -> None:
        """Sum the vCPUs of all instances of the account, ours or not: they share the quota."""
        now = self._clock.monotonic()
        if self._used_at is not None and now - self._used_at < USAGE_SECONDS:
            return
        states = {"Name": "instance-state-name", "Values": ["pending", "running"]}
        found = await self._calls.pages(
            "ec2", "describe_instances", "Reservations", Filters=[states]
        )
        running = [one for reservation in found for one in reservation["Instances"]]
        kinds = [one["InstanceType"] for one in running]
        sizes = dict(zip(sorted(set(kinds)), await self._vcpus(sorted(set(kinds))), strict=True))
        used: dict[str, float] = {}
        for one in running:
            spot = one.get("InstanceLifecycle") == "spot"
            code = _code(one["InstanceType"], spot=spot)
            used[code] = used.get(code, 0.0) + sizes[one["InstanceType"]]
        self._used, self._used_at = used, now

    async def _vcpus(self, kinds: list[str]) -> list[int]:
        """Return the vCPUs of instance types, in order. Raises CloudError, KeyError."""
        missing = [kind for kind in kinds if kind not in self._sizes]
        if missing:
            answer = await self._calls.pages(
                "ec2", "describe_instance_types", "InstanceTypes", InstanceTypes=missing
            )
            for one in answer:
                self._sizes[one["InstanceType"]] = int(one["VCpuInfo"]["DefaultVCpus"])
        return [self._sizes[kind] for kind in kinds]
