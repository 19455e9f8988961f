"""What stands in the quota ledger: one entry a sandbox or lease, and the answer to a request."""

from dataclasses import dataclass, field, fields
from operator import attrgetter

from dsec.api.experiment import TaskClass
from dsec.placement.accounts import Amounts, QuotaError, amounts, amounts_of, split
from dsec.placement.asked import Asked
from dsec.placement.refusal import Refusal
from dsec.placement.request import Request

GIVEN_BACK_WHEN_PAUSED = frozenset({"cpu_milli", "cpu_shares"})
"""A frozen sandbox runs nothing, but its memory, disk and devices stay taken."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One sandbox (or lease) in the ledger. Raises QuotaError on amounts that are none.

    `account` is the path `tenant/project/task` or `tenant/project`. `since`: when it was admitted,
    in seconds. `gang` (unique within its tenant), `group` and `group_min`: with fewer than
    `group_min` members of a group the whole gang is of no use. `given_back`: what it does not
    count while it is paused.
    """

    id: str
    account: str
    amounts: Amounts
    task_class: TaskClass = TaskClass.GUARANTEED
    priority: int = 0
    queue: str = "default"
    since: float = 0.0
    role: str = ""
    gang: str = ""
    group: str = ""
    group_min: int = 0
    given_back: Amounts = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.id:
            raise QuotaError("entry: id: empty; every sandbox has one")
        split(self.account)
        object.__setattr__(self, "amounts", amounts(self.amounts, self.id))

    @property
    def tenant(self) -> str:
        """Name of the tenant that pays."""
        return self.account.partition("/")[0]

    @property
    def guaranteed(self) -> bool:
        """Whether it is a reservation that nobody may touch (SCHED-19)."""
        return self.task_class is TaskClass.GUARANTEED

    @property
    def paused(self) -> bool:
        """Whether it has given something back for the time being."""
        return bool(self.given_back)


def again(entry: Entry, id_: str, since: float) -> Entry:
    """Return an entry that counts the same, in a fifth of the time of a new one."""
    made = object.__new__(Entry)
    for put, value in zip(_PUT, _GET(entry), strict=True):
        put(made, value)
    _PUT_ID(made, id_)
    _PUT_SINCE(made, since)
    return made


_SAME = tuple(one.name for one in fields(Entry) if one.name not in {"id", "since"})
_GET = attrgetter(*_SAME)
# a frozen class lets nobody set a field but through its slots
_PUT = tuple(vars(Entry)[name].__set__ for name in _SAME)
_PUT_ID, _PUT_SINCE = vars(Entry)["id"].__set__, vars(Entry)["since"].__set__


def alike(entry: Entry) -> tuple[object, ...]:
    """Return what is counted of an entry: entries that are equal in this take the same room."""
    return entry.account, entry.task_class, sorted(entry.amounts.items()), bool(entry.given_back)


def entry_of(request: Request, account: str, *, since: float = 0.0, role: str = "") -> Entry:
    """Return the entry of a request: the figures are those that placement books on a node.

    CPU asked in relative shares counts as such, since the machine is not known yet (CONF-08).
    """
    asked = Asked.of(request)
    found = amounts_of(request.resources) | {"cpu_milli": asked.cpu}
    if asked.relative_shares:
        found["cpu_shares"] = asked.relative_shares
    if request.gpu_slices:
        found["gpu_milli"] = 1000 * asked.gpus
    return Entry(
        request.id,
        account,
        found,
        request.task_class,
        request.priority,
        request.queue,
        since,
        role,
        request.gang,
    )


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to one request for quota: what was booked, or why nothing was."""

    booked: tuple[Entry, ...] = ()
    refusals: tuple[Refusal, ...] = ()
