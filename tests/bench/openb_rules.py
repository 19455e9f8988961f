"""Rules to compare with on the openb trace: random, best fit, and fragmentation gradient descent.

Every rule answers a stream with placements. Scores are kept per class of pods and made anew only
for nodes that changed since the class was last seen, so that a run takes seconds.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from dsec.sim.trace import Job, Machine
from numpy.typing import NDArray
from openb_protocol import Ends, Placement, Shape

WHOLE = 1000
REFUSED = -1.0

Array = NDArray[np.int64]


class Cluster:
    """Free room as arrays, one row a node, in a fixed order of the nodes."""

    def __init__(self, machines: Sequence[Machine], order: Sequence[int]) -> None:
        self.order = list(order)
        rows = [machines[index] for index in order]
        self.models = sorted({one.model for one in rows})
        self.model = np.array([self.models.index(one.model) for one in rows])
        self.cpu = np.array([one.cpu_milli for one in rows])
        self.memory = np.array([one.memory_bytes for one in rows])
        most = max(one.gpus for one in rows)
        self.cards = np.zeros((len(rows), most), dtype=np.int64)
        for row, one in enumerate(rows):
            self.cards[row, : one.gpus] = WHOLE

    def feasible(self, job: Job, rows: Array) -> NDArray[np.bool_]:
        """Say which of these nodes have room for a pod."""
        fits = (self.cpu[rows] >= job.cpu_milli) & (self.memory[rows] >= job.memory_bytes)
        if job.gpus:
            fits &= (self.cards[rows] >= job.milli).sum(axis=1) >= job.gpus
            if job.models:
                fits &= np.isin(self.model[rows], [self.models.index(m) for m in job.models])
        return fits

    def take(self, job: Job, row: int, cards: tuple[int, ...]) -> None:
        """Book a pod."""
        self.cpu[row] -= job.cpu_milli
        self.memory[row] -= job.memory_bytes
        for card in cards:
            self.cards[row, card] -= job.milli

    def give(self, job: Job, row: int, cards: tuple[int, ...]) -> None:
        """Take back what a pod had."""
        self.cpu[row] += job.cpu_milli
        self.memory[row] += job.memory_bytes
        for card in cards:
            self.cards[row, card] += job.milli


Scorer = Callable[[Job, Array], tuple[NDArray[np.float64], Array]]
"""(pod, rows) to (score, the card of a share); the highest score wins, the first of equals."""


def run(
    cluster: Cluster,
    stream: Sequence[Job],
    score: Scorer,
    lives: Sequence[int] | None = None,
    sizes: Sequence[int] | None = None,
) -> list[Placement]:
    """Place a stream one by one by a score that depends on the node alone.

    A gang of which one finds no room gives back what the others have (`sizes`; not with `lives`).
    """
    ends, rows_of = Ends(lives), {node: row for row, node in enumerate(cluster.order)}
    touched: list[int] = []
    known: dict[tuple[object, ...], tuple[int, NDArray[np.float64], Array]] = {}
    answers: list[Placement] = []
    everything = np.arange(len(cluster.order))
    begun = over = 0
    for index, job in enumerate(stream):
        if sizes is not None and sizes[index]:
            begun, over = index, 0
        if index < over:
            answers.append((-1, ()))
            continue
        for ended in ends.before(index):
            node, taken = answers[ended]
            cluster.give(stream[ended], rows_of[node], taken)
            touched.append(rows_of[node])
        key = (job.cpu_milli, job.memory_bytes, job.gpus, job.milli, job.models)
        if key in known:
            since, scores, cards = known[key]
            rows = np.unique(np.array(touched[since:], dtype=np.int64))
        else:
            rows, scores = everything, np.zeros(len(everything))
            cards = np.zeros(len(everything), dtype=np.int64)
        if len(rows):
            fresh, chosen = score(job, rows)
            scores[rows] = np.where(cluster.feasible(job, rows), fresh, REFUSED)
            cards[rows] = chosen
        known[key] = (len(touched), scores, cards)
        best = int(scores.argmax())
        if scores[best] == REFUSED:
            answers.append((-1, ()))
            if sizes is not None:
                over = begun + sizes[begun]
                touched += _give_back(cluster, stream, answers, begun, rows_of)
            continue
        taken = _cards(cluster, job, best, int(cards[best]))
        cluster.take(job, best, taken)
        touched.append(best)
        ends.placed(index)
        answers.append((cluster.order[best], taken))
    return answers


def _give_back(
    cluster: Cluster,
    stream: Sequence[Job],
    answers: list[Placement],
    begun: int,
    rows_of: Mapping[int, int],
) -> list[int]:
    """Take back what a gang got so far; return the rows that changed."""
    rows = []
    for index in range(begun, len(answers)):
        node, taken = answers[index]
        if node >= 0:
            cluster.give(stream[index], rows_of[node], taken)
            rows.append(rows_of[node])
            answers[index] = (-1, ())
    return rows


def _cards(cluster: Cluster, job: Job, row: int, share: int) -> tuple[int, ...]:
    """Return the card of a share, or the first free ones."""
    if not job.gpus or job.milli < WHOLE:
        return (share,) * job.gpus
    free = np.flatnonzero(cluster.cards[row] == WHOLE)
    return tuple(int(card) for card in free[: job.gpus])


def tightest(cluster: Cluster, job: Job, rows: Array) -> Array:
    """Return the fullest card of each node that has room for a share."""
    cards = cluster.cards[rows]
    return np.asarray(np.where(cards >= job.milli, cards, WHOLE + 1).argmin(axis=1))


def by_chance(
    cluster: Cluster, stream: Sequence[Job], seed: int, lives: Sequence[int] | None = None
) -> list[Placement]:
    """Place on any node with room."""
    ends, rows_of = Ends(lives), {node: row for row, node in enumerate(cluster.order)}
    random = np.random.default_rng(seed)
    everything = np.arange(len(cluster.order))
    answers: list[Placement] = []
    for index, job in enumerate(stream):
        for ended in ends.before(index):
            node, taken = answers[ended]
            cluster.give(stream[ended], rows_of[node], taken)
        rows = np.flatnonzero(cluster.feasible(job, everything))
        if not len(rows):
            answers.append((-1, ()))
            continue
        row = int(random.choice(rows))
        share = np.flatnonzero(cluster.cards[row] >= max(1, job.milli))
        card = int(random.choice(share)) if 0 < job.milli < WHOLE else 0
        taken = _cards(cluster, job, row, card)
        cluster.take(job, row, taken)
        ends.placed(index)
        answers.append((cluster.order[row], taken))
    return answers


def best_fit(cluster: Cluster) -> Scorer:
    """Return the score of best fit: least left over of CPU, memory and GPU, as parts of a node."""
    cpu, memory = cluster.cpu.max(), cluster.memory.max()
    gpu = cluster.cards.sum(axis=1).max()

    def score(job: Job, rows: Array) -> tuple[NDArray[np.float64], Array]:
        left = (
            (cluster.cpu[rows] - job.cpu_milli) / cpu
            + (cluster.memory[rows] - job.memory_bytes) / memory
            + (cluster.cards[rows].sum(axis=1) - job.gpus * job.milli) / gpu
        )
        return 3.0 - left, tightest(cluster, job, rows)

    return score


def gradient(cluster: Cluster, shapes: Sequence[Shape]) -> Scorer:
    """Return the score of fragmentation gradient descent, as its published simulator computes it.

    The change of the fragments goes through a logistic function and is cut to a whole number from
    0 to 100: many nodes tie, and the first in the fixed order wins.
    """
    sizes = sorted({shape.milli for shape in shapes if shape.gpus})
    served = [shape for shape in shapes if shape.gpus]
    need_cpu = np.array([shape.cpu_milli for shape in served])
    need = np.array([shape.gpus for shape in served])
    size = np.array([sizes.index(shape.milli) for shape in served])
    part = np.array([shape.part for shape in served])
    allowed = np.array(
        [[not one.models or model in one.models for one in served] for model in cluster.models]
    )

    def fragments(cpu: Array, cards: Array, model: Array) -> NDArray[np.float64]:
        count = np.empty((len(cpu), len(sizes)), dtype=np.int64)
        room = np.empty((len(cpu), len(sizes)), dtype=np.int64)
        for column, milli in enumerate(sizes):
            fits = cards >= milli
            count[:, column] = fits.sum(axis=1)
            room[:, column] = (cards * fits).sum(axis=1)
        can = (count[:, size] >= need) & (cpu[:, None] >= need_cpu) & allowed[model]
        used = (can * room[:, size]) @ part
        return np.asarray(cards.sum(axis=1) - used)

    def squeezed(before: NDArray[np.float64], after: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.floor(100 / (1 + np.exp(-(before - after) / 1000)))

    def score(job: Job, rows: Array) -> tuple[NDArray[np.float64], Array]:
        cpu, cards, model = cluster.cpu[rows], cluster.cards[rows], cluster.model[rows]
        before, left = fragments(cpu, cards, model), cpu - job.cpu_milli
        if job.gpus == 0 or job.milli == WHOLE:
            # the first free cards go; where there are too few the node is refused anyway
            free = cards == WHOLE
            gone = free & (free.cumsum(axis=1) <= job.gpus)
            after = fragments(left, np.where(gone, 0, cards), model)
            return squeezed(before, after), np.zeros(len(rows), dtype=np.int64)
        width = cards.shape[1]
        options = np.repeat(cards[:, None, :], width, axis=1)
        options[:, np.arange(width), np.arange(width)] -= job.milli
        after = fragments(
            np.repeat(left, width), options.reshape(-1, width), np.repeat(model, width)
        ).reshape(-1, width)
        scores = np.where(cards >= job.milli, squeezed(before[:, None], after), REFUSED)
        card = scores.argmax(axis=1)
        return scores[np.arange(len(rows)), card], card

    return score
