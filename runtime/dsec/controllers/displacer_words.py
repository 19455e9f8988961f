"""How preemption is told of: to those that leave, and in history."""

from collections.abc import Sequence

import structlog

from dsec.controllers.asking import Unit, name_of
from dsec.journal.bindings import Binding
from dsec.journal.history import HistoryWriter
from dsec.placement.plans import Displacement, Step

PREEMPTING = "preempting"
"""Kind of the row about a plan."""

log = structlog.get_logger()


def words(victim: Binding, asker: Binding | None, how: str) -> str:
    """Return what a victim is told that is `paused` or `stopped`."""
    back = "goes on" if how == "paused" else "starts again"
    name = name_of(asker, victim.tenant)
    return f"{how} to make room for {name}; it {back} when there is room"


def tell_plan(
    history: HistoryWriter,
    unit: Unit,
    asked: Sequence[Displacement],
    waited: float,
    unsaved: Sequence[str],
) -> None:
    """Write who has to leave for whom after how many seconds; `unsaved`: whose state is lost."""
    asker = unit.first
    history.add(
        PREEMPTING,
        tenant=asker.tenant,
        experiment=asker.spec.identity.experiment,
        sandbox=asker.id,
        key=asker.key,
        priority=asker.priority,
        waited=round(waited, 3),
        victims=[
            {
                "id": one.id,
                "node": one.node,
                "steps": [step.value for step in one.steps if step is not Step.SYNC],
            }
            for one in asked
        ],
        unsaved=list(unsaved),
        correlationId=asker.spec.identity.correlation_id,
    )
    log.info("displacing", asker=asker.id, victims=[one.id for one in asked])
