"""Two processes against one, with the exchange of gradients after backward and during it: python -m bench.exchange

Both kinds of exchange run in the same two processes, in turn with one process that takes the whole batch; one thread
each, gloo over the loopback, AdamW. `--trunks NAME:BATCH`.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable
from functools import partial

from bench.harness import Comparison, alternate, arguments, machine_now, ratio, write_record, written
from bench.scaling import SMALL, slowest
from bench.sides import LATE, OPTIMISER, Built, Side, made_up_pairs
from dinorankclip import distributed
from dinorankclip.device import choose
from dinorankclip.losses import Objective
from dinorankclip.models.joint import JointModel
from dinorankclip.models.trunk import trunk_config
from dinorankclip.train.step import Updater, backward
from dinorankclip.types import Batch

ONE, AFTER, DURING = "one process", "two, exchange after backward", "two, exchange during backward"


def step_of(trunk: str, batch: int) -> Built:
    """A step of this process's share of `batch` pairs; with several processes every second one exchanges late."""
    world = distributed.join("cpu")
    model = JointModel(trunk_config(trunk))
    objective = Objective(model.dim, "clip")
    updater = Updater({"model": model, "objective": objective}, OPTIMISER, LATE.total_steps)
    placement = choose("cpu", "fp32")

    def step(pairs: Batch, during: bool) -> None:
        backward(model, objective, pairs, LATE, placement, updater=updater if during else None)
        updater.step(LATE, model.trunk.logit_scale)

    for during in (False, True):  # loads what is loaded once, learns the order of the buckets
        step(made_up_pairs(model, SMALL // world.size, world.rank), during)
    pairs, turns = made_up_pairs(model, batch // world.size, world.rank), itertools.count()
    return lambda: step(pairs, next(turns) % 2 == 1), {}


def compared(trunk: str, batch: int, rounds: int) -> Comparison:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    build: Callable[[], Built] = partial(step_of, trunk, batch)
    alone = [Side(build, 1)]
    pair = [Side(build, 1, group | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]
    try:
        assert all(side.facts is not None for side in (*alone, *pair))
        sides = {name: partial(slowest, members) for name, members in ((ONE, alone), (AFTER, pair), (DURING, pair))}
        # Not there and back: the two processes take the two kinds of exchange in turn.
        times = alternate(sides, rounds, 1, f"{trunk}, {batch}", there_and_back=False)
    finally:
        for side in (*alone, *pair):
            side.close()
    spared = written(ratio(times[DURING], times[AFTER]), 3)
    note = f"Batch {batch} in all; gloo on one machine, one thread each. During over after: {spared}."
    return Comparison(f"{trunk}, batch {batch}", times, ONE, batch, note=note)


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--trunks", nargs="+", default=["drc-tiny:64", "ViT-B-32:8"], help="NAME:BATCH")
    options = parser.parse_args(argv)
    options.threads = 1
    if options.quick:
        options.trunks = ["drc-tiny:8"]
    about = machine_now(1)
    rounds = options.rounds or (1 if options.quick else 6)
    cells = [(name, int(batch)) for name, _, batch in (word.rpartition(":") for word in options.trunks)]
    found = []
    for name, batch in cells:
        found.append(compared(name, batch, rounds))
        print(found[-1].as_markdown(), flush=True)
    write_record("exchange", found, options, about)


if __name__ == "__main__":
    main()
