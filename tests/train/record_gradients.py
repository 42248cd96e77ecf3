"""Ten training steps under torchrun; the leading process writes loss and averaged gradient of each.

torchrun … tests/train/record_gradients.py OUT DATA METHOD '{"budget.chunk": 6}'
"""

import json
import sys
from contextlib import closing

import torch
from safetensors.torch import save_file

from dinorankclip import distributed
from dinorankclip.config import with_changes
from dinorankclip.presets import for_method, preset
from dinorankclip.train.assemble import assemble
from dinorankclip.train.step import backward
from dinorankclip.types import Progress
from dinorankclip.validate import validated

STEPS = 10


def main() -> None:
    out, data, method, changes = sys.argv[1:]
    common = {"data": data, "model.trunk": "drc-tiny", "budget.batch": 16, "budget.threads": 1}
    settings = validated(with_changes(for_method(preset("scenes"), method), common | json.loads(changes)))
    parts = assemble(settings)
    found = {}
    with closing(iter(parts.loader)) as batches:
        for step, batch in zip(range(STEPS), batches):
            progress = Progress(step, STEPS, settings.budget.epochs)
            chunk, updater = settings.budget.chunk, parts.state.updater
            terms = backward(
                parts.state.model, parts.state.objective, batch, progress, parts.placement, chunk, updater=updater
            )
            parameters = updater.parameters
            updater.exchange.finish()
            loss = distributed.mean_over_processes({"loss": float(terms.total.detach())})["loss"]
            found[f"{step}/loss"] = torch.tensor(loss)
            found |= {f"{step}/{n}": p.grad.clone() for n, p in parameters.items() if p.grad is not None}
            updater.step(progress, parts.state.model.trunk.logit_scale)
    if distributed.world().leads:
        save_file(found, out)
    distributed.leave()


main()
