"""The placement of dsec on the openb trace: one request at a time, the mix learned on the way."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dsec.placement.engine import place
from dsec.placement.mix import Mix
from dsec.placement.view import ClusterView
from dsec.sim.cluster import cards_of, node_of, request_of
from dsec.sim.trace import Job, Machine
from openb_moves import make_room
from openb_protocol import Ends, Placement

Moves = dict[int, list[tuple[int, Placement]]]
"""Pods that moved at an arrival, with where they went."""


def place_all(
    machines: Sequence[Machine],
    stream: Sequence[Job],
    seed: int,
    lives: Sequence[int] | None = None,
    sizes: Sequence[int] | None = None,
    *,
    moves: Moves | None = None,
) -> list[Placement]:
    """Return the placements of a stream; the seed goes into names, and so into the nodes' order.

    With `sizes` gangs are placed as such. Where `moves` is given, pods may move, which it notes.
    """
    nodes = [node_of(machine, f"{seed}-") for machine in machines]
    view, mix = ClusterView(nodes), Mix()
    numbers = {node.name: index for index, node in enumerate(nodes)}
    answers: list[Placement] = []
    ends = Ends(lives)
    if sizes is not None:
        return _gangs(view, mix, numbers, stream, sizes)
    for index, job in enumerate(stream):
        for ended in ends.before(index):
            view.release(f"pod-{ended}")
            mix.ended(1 if stream[ended].gpus else 0)
        request = request_of(job, f"pod-{index}")
        (decision,) = place(view, [request], mix=mix)
        if moves is not None and not decision.node and job.gpus > 1:
            room = make_room(view, request, mix)
            if room is not None:
                decision = room.decision
                moves[index] = [
                    (int(one.id[4:]), (numbers[one.node], cards_of(one.devices)))
                    for one in room.moves
                ]
        if decision.node:
            answers.append((numbers[decision.node], cards_of(decision.devices)))
            ends.placed(index)
        else:
            answers.append((-1, ()))
    return answers


def _gangs(
    view: ClusterView,
    mix: Mix,
    numbers: Mapping[str, int],
    stream: Sequence[Job],
    sizes: Sequence[int],
) -> list[Placement]:
    answers: list[Placement] = []
    for index, size in enumerate(sizes):
        if not size:
            continue
        gang = f"gang-{index}" if size > 1 else ""
        members = [
            replace(request_of(stream[n], f"pod-{n}"), gang=gang)
            for n in range(index, index + size)
        ]
        answers += [
            (numbers[one.node], cards_of(one.devices)) if one.node else (-1, ())
            for one in place(view, members, mix=mix)
        ]
    return answers
