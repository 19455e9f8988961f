"""From what is recorded to what the ledger knows: quotas as accounts, bindings as units. Pure."""

from dsec.api.experiment import TaskClass
from dsec.api.tenant import TenantSpec
from dsec.journal.bindings import Binding
from dsec.placement.accounts import Account, QuotaError, limits
from dsec.placement.ledger import Ledger

COHORT = "cluster"
"""Tenants lend each other what is idle in the whole cluster."""


def unit_of(binding: Binding) -> str:
    """Return the name of what starts together or not at all."""
    return binding.gang or binding.id


def account_of(name: str, spec: TenantSpec, project: str = "") -> Account:
    """Return the account of a tenant, or of a project of it that owns something.

    Raises QuotaError where its quota contradicts itself.
    """
    quota = spec.quota
    if project:
        path = f"{name}/{project}"
        return Account(path, limits(quota.projects[project].model_dump(), path, "relative"))
    nominal = limits(quota.nominal.model_dump(), name, "relative")
    ceiling = None
    if quota.ceiling is not None:
        ceiling = limits(quota.ceiling.model_dump(), name, "relative")
    # a ceiling above what it owns is the tenant's word that it borrows, and gives back
    above = TaskClass.PAUSABLE if ceiling is not None else None
    return Account(name, nominal, ceiling, COHORT, above)


def quota_problem(name: str, spec: TenantSpec) -> str:
    """Return what is wrong with a tenant's quota in itself; empty: nothing."""
    ledger = Ledger()
    try:
        for project in ("", *sorted(spec.quota.projects)):
            ledger.put(account_of(name, spec, project))
    except QuotaError as error:
        return str(error)
    return ""
