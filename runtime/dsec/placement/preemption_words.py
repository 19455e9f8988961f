"""Why waiting work displaces nobody, in words."""

from enum import StrEnum

from dsec.placement.refusal import Refusal


class Hindrance(StrEnum):
    """What keeps waiting work from displacing other work; the refusal's dimension."""

    WAIT = "wait"
    """It has not waited long enough (TEN-09); asked and free are whole seconds."""
    CONSENT = "consent"
    """Nobody that may be displaced for it runs (TEN-10)."""
    SHARE = "share"
    """It is above its tenant's own share: what is borrowed displaces nobody else's work."""
    USELESS = "useless"
    """It would not fit even if all `nodes` that may be displaced were gone."""
    QUEUE = "queue"
    """Its queue, `asked`, does not preempt (SCHED-16)."""
    LEAVING = "leaving"
    """`nodes` others, `whose` (names, since when), are on their way out for it already."""


def preemption_sentence(refusal: Refusal) -> str:
    """Return a hindrance as a sentence."""
    asked, count = refusal.asked, refusal.nodes
    text = {
        Hindrance.WAIT: (
            f"asked after {refusal.free} s of waiting, free to displace others after {asked} s; "
            f"starts when it has waited that long or room falls free"
        ),
        Hindrance.CONSENT: (
            "asked the place of softer work, free 0: nothing of a lower priority that runs is "
            "pausable or preemptible; starts when room falls free"
        ),
        Hindrance.SHARE: (
            f"asked the place of others, free 0: with it {refusal.whose} has more than its own "
            f"share, and what is borrowed displaces nobody; starts when room falls free or the "
            f"share is raised"
        ),
        Hindrance.USELESS: (
            f"asked the place of softer work, free 0: it would not fit either if all {count} that "
            f"may be displaced were gone; starts when other work ends or a node joins"
        ),
        Hindrance.QUEUE: (
            f"asked in queue {asked}, free 0: the queue does not preempt; starts when room falls "
            f"free"
        ),
        Hindrance.LEAVING: (
            f"displacing {refusal.whose or 'others'}: asked the place of {count} others, free 0 "
            f"yet: they are on their way out; starts when they have gone"
        ),
    }[Hindrance(refusal.dimension)]
    return f"preemption: {text}"
