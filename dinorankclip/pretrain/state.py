"""All that a resumed run needs, and its way to disk and back without pickling.

A checkpoint folder is a model folder (joint/folder.py) plus `training.safetensors` (objective, optimiser, random
generators of every process) and `training.json` (step, best score, data fingerprint).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch

from dinorankclip import comm
from dinorankclip.encoders.weights_file import read_weights, write_weights
from dinorankclip.joint.folder import load_weights, save_model
from dinorankclip.joint.model import JointModel
from dinorankclip.losses.objective import Objective
from dinorankclip.optim.update import Updater
from dinorankclip.run_files import NUMBERS, TENSORS
from dinorankclip.types import UserError


@dataclass
class TrainingState:
    model: JointModel
    objective: Objective
    updater: Updater
    data_fingerprint: str
    step: int = 0  # steps done; the data position is step × global batch
    best: float = -1.0
    best_step: int = -1

    def write(self, folder: Path, random_states: list[torch.Tensor]) -> None:
        """The leading process writes everything, the other processes' generators included."""
        save_model(self.model, folder)
        tensors = {f"objective/{n}": t for n, t in self.objective.state_dict().items()}
        tensors |= {f"optimizer/{n}": t for n, t in self.updater.state().items()}
        tensors |= {f"random/{rank}": t for rank, t in enumerate(random_states)}
        write_weights(tensors, folder / TENSORS)
        numbers = {
            "step": self.step,
            "best": self.best,
            "best_step": self.best_step,
            "data": self.data_fingerprint,
            "processes": len(random_states),
        }
        (folder / NUMBERS).write_text(json.dumps(numbers, indent=2) + "\n")

    def read(self, folder: Path) -> None:
        numbers = json.loads((folder / NUMBERS).read_text())
        if numbers["data"] != self.data_fingerprint:
            raise UserError(
                f"{folder}: the data has changed since this checkpoint was written, so the position inside it means "
                "nothing any more. Use --restart for a new run, or --init to start from these weights."
            )
        load_weights(self.model, folder)
        parts: dict[str, dict[str, torch.Tensor]] = {"objective": {}, "optimizer": {}, "random": {}}
        for entry, tensor in read_weights(folder / TENSORS).items():
            part, name = entry.split("/", 1)
            parts[part][name] = tensor
        self.objective.load_state_dict(parts["objective"])
        self.updater.load_state(parts["optimizer"])
        self.step, self.best, self.best_step = numbers["step"], numbers["best"], numbers["best_step"]
        mine = parts["random"].get(str(comm.world().rank))
        # With another number of processes there is no generator to continue; sampling never depends on it, since
        # data positions have generators of their own.
        if mine is not None and numbers["processes"] == comm.world().size:
            set_random_state(mine, self.device)

    @property
    def device(self) -> torch.device:
        return self.model.trunk.logit_scale.device


def random_state(device: torch.device) -> torch.Tensor:
    """This process's torch generators as one uint8 tensor: the CPU's, then that of the GPU it trains on, if it does.
    Of the same size on every process, whatever else one of them has asked CUDA."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)


def set_random_state(state: torch.Tensor, device: torch.device) -> None:
    cpu = torch.get_rng_state().numel()
    torch.set_rng_state(state[:cpu])
    if device.type == "cuda" and state.numel() > cpu:
        torch.cuda.set_rng_state(state[cpu:], device)
