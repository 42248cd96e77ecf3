"""Gradients that are exchanged while backward runs, beside those that are exchanged after it, under torchrun.

torchrun … tests/train/compare_exchange.py OUT CASES, where CASES is JSON: {"name": [flags of train, …], …}
"""

import json
import sys
from contextlib import closing
from pathlib import Path

import torch

from dinorankclip import distributed
from dinorankclip.commands.train import parse
from dinorankclip.train.assemble import assemble
from dinorankclip.train.step import backward
from dinorankclip.types import Progress
from dinorankclip.validate import validated

NOW = Progress(900, 1000, 64)  # every order acts
SMALL = 1 << 14  # numbers in a bucket, so that there are many


def compare(flags: list[str]) -> dict[str, object]:
    parts = assemble(validated(parse(flags)[0]), dry=True)
    state, chunk = parts.state, parts.settings.budget.chunk
    updater = state.updater
    with closing(iter(parts.loader)) as batches:
        batch = next(batches)

    def gradients(overlapped: bool) -> dict[str, torch.Tensor]:
        backward(
            state.model, state.objective, batch, NOW, parts.placement, chunk, updater=updater if overlapped else None
        )
        updater.exchange.finish() if overlapped else distributed.mean_gradients(updater.parameters.values())
        found = {name: p.grad.clone() for name, p in updater.parameters.items() if p.grad is not None}
        updater._clear()
        return found

    after = gradients(False)
    updater.exchange = distributed.GradientExchange([list(updater.parameters.values())], SMALL)
    early, sends, finish = [], updater.exchange._send, updater.exchange.finish
    updater.exchange._send = lambda number: (early.append(number), sends(number))
    first = gradients(True)  # learns the order of the buckets
    learnt = len(early)
    del early[:]
    updater.exchange.finish = lambda: (early.append("end"), finish())
    second = gradients(True)
    return {
        "gradients": len(after),
        "without": len(updater.parameters) - len(after),
        "same": all(found.keys() == after.keys() for found in (first, second))
        and all(torch.equal(after[n], first[n]) and torch.equal(after[n], second[n]) for n in after),
        "buckets": learnt,
        "during backward": early.index("end"),
    }


def main() -> None:
    found = {name: compare(flags) for name, flags in json.loads(sys.argv[2]).items()}
    if distributed.world().leads:
        Path(sys.argv[1]).write_text(json.dumps(found))
    distributed.leave()


main()
