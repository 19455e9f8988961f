"""A leader's buying in a process of its own, to be killed at any moment: a journal, then calls.

Usage: aws_buyer.py ENDPOINT INSTALLATION FOLDER. Reads what it has written before, takes over what
exists, buys what is missing, extends all, ends the first purchase, and writes what it knows.
"""

import asyncio
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dsec.providers.reconcile import Recorded, Verdict, reconcile
from ec2_server import World
from provider_make import T0, Buy, Offer, aws_provider

WANTED = {"t-1": (Offer(), 2), "t-2": (Offer(market="spot"), 1)}


class Journal:
    """What outlives the process: a line per fact, written before the act or after its answer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        rows = path.read_text().splitlines() if path.exists() else []
        self.facts = [json.loads(row) for row in rows]

    def note(self, **fact: object) -> None:
        """Write a fact."""
        with self._path.open("a") as stream:
            stream.write(json.dumps(fact) + "\n")
        self.facts.append(fact)

    def last(self, kind: str, token: str) -> dict[str, object] | None:
        """Return the newest fact of a kind about a purchase."""
        found = [f for f in self.facts if (f["kind"], f["token"]) == (kind, token)]
        return found[-1] if found else None


async def run(endpoint: str, installation: str, folder: Path) -> None:
    """Go on from where an earlier process died, to the end."""
    journal = Journal(folder / "journal")
    epoch = 1 + sum(fact["kind"] == "leader" for fact in journal.facts)
    journal.note(kind="leader", token="", epoch=epoch)
    provider = aws_provider(World(endpoint=endpoint), installation)
    try:
        held = await provider.list()
        recorded = {
            token: Recorded(WANTED[token][1]) for token in WANTED if journal.last("wanted", token)
        }
        now = max((node.launched_at for node in held.nodes), default=0.0) + 1
        for one in reconcile(held, recorded, frozenset(), now):
            if one.verdict is Verdict.END:
                await provider.end([one.id], epoch=epoch)
        for token, (offer, count) in WANTED.items():
            if journal.last("bought", token):
                continue
            # the terms are recorded before the first try, and a repeat has the same
            wanted = journal.last("wanted", token)
            if wanted is None:
                journal.note(kind="wanted", token=token, until=T0 + epoch)
                wanted = journal.last("wanted", token)
            until = float(str((wanted or {})["until"]))
            answer = await provider.buy(Buy(offer, count, token), epoch=epoch, run_until=until)
            if answer.failure is not None:
                raise SystemExit(answer.failure.words)
            journal.note(kind="bought", token=token, nodes=[node.id for node in answer.nodes])
        first, second = ((journal.last("bought", token) or {})["nodes"] for token in WANTED)
        assert isinstance(first, list)
        assert isinstance(second, list)
        await provider.extend([*first, *second], T0 + 3600, epoch=epoch)
        await provider.end(first, epoch=epoch)
        journal.note(kind="done", token="", nodes=second)
    finally:
        await provider.close()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
