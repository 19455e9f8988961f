"""A team: its projects, its share of the machines, and what fills the gaps of its documents."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.experiment import Gpu
from dsec.api.meta import Bytes, Conditions, Count, DnsName, Live, NewReplicas, Word
from dsec.api.sandbox import IsolationLevel


class Amounts(WireModel):
    """An amount of each dimension; unset is unlimited."""

    cpu_milli: Bytes | None = Field(default=None, description="CPU, in thousandths of a core.")
    memory_bytes: Bytes | None = Field(default=None, description="Memory, in bytes.")
    gpu_count: Count | None = Field(default=None, description="GPUs.")
    sandboxes: Count | None = Field(default=None, description="Live sandboxes.")


class Quota(WireModel):
    """Own share and borrowing limit (TEN-02)."""

    nominal: Amounts = Field(default=Amounts(), description="What the tenant owns.")
    ceiling: Amounts | None = Field(
        default=None, description="Most with borrowing; unset: equal to nominal."
    )
    projects: dict[DnsName, Amounts] = Field(
        default={},
        max_length=1000,
        description="What single projects own of the nominal amounts; others share what is left.",
    )


class DefaultResources(WireModel):
    """Ceilings for roles that declare none; each use is listed in status.resolved."""

    cpu_milli: Bytes | None = Field(default=None, description="CPU, in thousandths of a core.")
    memory_bytes: Bytes | None = Field(default=None, description="Memory limit, in bytes.")
    pids: Count | None = Field(default=None, description="Most processes and threads.")
    disk_bytes: Bytes | None = Field(default=None, description="Writable space, in bytes.")
    gpu_memory_bytes: Bytes | None = Field(
        default=None, description="GPU memory ceiling of shared devices, in bytes."
    )


class ImageMirror(WireModel):
    """Where images of a prefix really come from."""

    prefix: Word = Field(description="Start of the reference, for example registry.internal/.")
    mirror: Word = Field(description="What replaces the prefix; a full reference replaces all.")


class TenantDefaults(WireModel):
    """What fills the gaps of this tenant's documents. Every use is listed in status.resolved."""

    resources: DefaultResources = Field(
        default=DefaultResources(), description="Ceilings where a role declares none."
    )
    gpu: Gpu | None = Field(default=None, description="Unused dimensions of a declared gpu.")
    image: Word = Field(default="", description="Image of roles that name none.")
    image_mirrors: list[ImageMirror] = Field(
        default=[], max_length=64, description="First matching prefix wins."
    )
    presets: dict[str, Word] = Field(
        default={}, max_length=64, description="Preset per conflict, for example CONF-10: microvm."
    )
    isolation_level: IsolationLevel | None = Field(
        default=None, description="Where the document names none."
    )
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")] | None = Field(
        default=None, description="ISO 4217 code of budgets that name none."
    )
    max_run_seconds: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Longest run time where the document names none."
    )
    workspace_bytes: Bytes | None = Field(default=None, description="Workspace capacity.")


class TenantSpec(WireModel):
    """A team: its projects, its share and its defaults."""

    display_name: Live[Word] = Field(default="", description="Name for people.")
    projects: Live[list[DnsName]] = Field(
        default=[], max_length=1000, description="Namespaces that belong to it."
    )
    document_tenants: Live[list[Word]] = Field(
        default=[], max_length=64, description="Names that documents may use for this tenant."
    )
    quota: Live[Quota] = Field(default=Quota(), description="Share and ceiling.")
    defaults: NewReplicas[TenantDefaults] = Field(
        default=TenantDefaults(), description="What fills the gaps of documents."
    )
    registries: Live[list[Word]] = Field(
        default=[], max_length=64, description="Image prefixes allowed; empty: all."
    )
    pools: Live[list[DnsName]] = Field(
        default=[], max_length=64, description="Node pools it may use; empty: all."
    )
    residency: Live[list[Word]] = Field(
        default=[], max_length=32, description="Regions that its data may be in; empty: all."
    )
    allow_open_egress: Live[bool] = Field(
        default=False, description="Its experiments may open all egress."
    )


class Purge(WireModel):
    """A call for the end of every sandbox that no experiment owns; lapses by itself."""

    by: Word = Field(description="Who asked.")
    until: datetime = Field(description="No such sandbox is made before (UTC).")
    observed: bool = Field(
        default=False, description="The control plane ends them; keyed is of a later time."
    )


class TenantStatus(WireModel):
    """What the tenant uses now."""

    observed_generation: int = Field(default=0, ge=0, description="Generation spoken of.")
    conditions: Conditions = Field(default=[], description="Ready; see RecordReason.")
    used: Amounts = Field(default=Amounts(), description="Sum over its live sandboxes.")
    leased: Amounts = Field(
        default=Amounts(), description="Lent to gateways for single creates, and not used yet."
    )
    experiments: Count = Field(default=0, description="Experiments in its projects.")
    keyed: Count = Field(
        default=0, description="Sandboxes without an experiment that wait or have not ended."
    )
    purge: Purge | None = Field(default=None, description="Set where they are all to end.")
