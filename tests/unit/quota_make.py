"""Builders for tests of the quota ledger: amounts in cores, entries, ledgers, invariants."""

from typing import Any

from dsec.api.experiment import TaskClass
from dsec.placement.accounts import Account
from dsec.placement.branches import Branch
from dsec.placement.entries import Entry
from dsec.placement.ledger import Ledger

GUARANTEED, PAUSABLE, PREEMPTIBLE = TaskClass


def cpu(cores: int) -> dict[str, int]:
    """Return an amount of cores."""
    return {"cpu_milli": cores * 1000}


def entry(
    name: str, cores: int, account: str = "a/p", cls: TaskClass = PAUSABLE, **more: Any
) -> Entry:
    """Build an entry of so many cores."""
    return Entry(name, account, cpu(cores), cls, **more)


def tenants(nominal: int = 8, ceiling: int = 12, *names: str) -> Ledger:
    """Return tenants (a and b unless named) with a nominal amount and a ceiling, in cores."""
    ledger = Ledger()
    for name in names or ("a", "b"):
        ledger.put(Account(name, cpu(nominal), cpu(ceiling)))
    return ledger


def used(ledger: Ledger, *paths: str) -> list[int]:
    """Return the used cores of accounts."""
    return [ledger.used(path).get("cpu_milli", 0) // 1000 for path in paths]


def too_much(branch: Branch) -> list[str]:
    """Return the dimensions in which more is live or leased than a branch may have."""
    return [
        f"{branch.path} {dimension} {branch.counted(dimension)} > {branch.most(dimension)}"
        for dimension in branch.total
        if (most := branch.most(dimension)) is not None and branch.counted(dimension) > most
    ]
