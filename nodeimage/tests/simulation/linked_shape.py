"""The topology of the clusters in a run, and the parameters of each, drawn from the seed."""

import random
from dataclasses import dataclass

from simulation.cluster import Shape


@dataclass(frozen=True, slots=True)
class Links:
    """The parameters of a run with links."""

    topology: str
    edges: tuple[tuple[str, str], ...]
    """Pairs of target and source."""
    shapes: tuple[Shape, ...]
    topics: int
    hop_s: float
    faults_s: float


def draw_links(chance: random.Random) -> Links:
    topology = chance.choices(("one way", "both ways", "chain", "ring", "star", "mesh"), (5, 6, 3, 2, 3, 2))[0]
    count = 2 if topology.endswith(("way", "ways")) else chance.choices((3, 4), (3, 1))[0]
    names = [chr(ord("a") + index) for index in range(count)]
    chance.shuffle(names)  # the order of names decides between homes with the same counter
    first, *others = names
    edges: list[tuple[str, str]]
    match topology:
        case "one way":
            edges = [(names[1], first)]
        case "both ways":
            edges = [(names[1], first), (first, names[1])]
        case "chain":
            edges = [(target, source) for source, target in zip(names, others, strict=False)]
        case "ring":
            edges = [(target, source) for source, target in zip(names, [*others, first], strict=True)]
        case "star":
            out = [(other, first) for other in others]
            back = [(first, other) for other in others]
            edges = chance.choice((out, back, out + back))
        case _:
            edges = [(target, source) for target in names for source in names if target != source]
    return Links(
        topology=topology,
        edges=tuple(edges),
        shapes=tuple(_shape(chance) for _ in names),
        topics=chance.randint(1, 2),
        hop_s=chance.choice((0.001, 0.02, 0.1)),
        faults_s=chance.uniform(3, 12),
    )


def _shape(chance: random.Random) -> Shape:
    replicas, min_in_sync = chance.choices(((3, 2), (2, 1)), (3, 1))[0]
    return Shape(
        nodes=3,
        replicas=replicas,
        min_in_sync=min_in_sync,
        clients=0,
        chunk_bytes=chance.choice((8192, 32768)),
        job_s=chance.choice((0.003, 0.02)),
        hop_s=chance.choice((0.001, 0.005)),
        faults_s=0.0,
        faults=0,
        topics=1,
        flips=False,
    )
