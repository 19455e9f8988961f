"""Messages of the controller's internal API, which only gateways call."""

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.reasons import EndReason
from dsec.api.wire import CreateBatch

LEASE = "dsec-controller"
"""The Lease of the leading controller, in the control plane's own namespace."""
ENDPOINT_ANNOTATION = "dsec.dev/endpoint"
"""On that Lease: where the leader serves its internal API."""


class CreatesCall(WireModel):
    """A batch of keyed creates that the gateway has authorised."""

    project: str
    user: str = ""
    correlation_id: str = ""
    batch: CreateBatch


class DumpCall(WireModel):
    """Dump the next round of decisions."""


class EndCall(WireModel):
    """End sandboxes of a project."""

    project: str
    ids: list[str] = Field(min_length=1, max_length=10_000)
    reason: EndReason = EndReason.STOPPED
    message: str = ""


class EndOutcome(WireModel):
    """`unknown` are ids that the project has not; `taken` False: an agent is silent, repeat."""

    unknown: list[str] = []
    taken: bool = True
