"""One optimiser step: average over processes, check, clip, AdamW, clamp the temperature."""

from __future__ import annotations

import math

import torch
from torch import nn

from dinorankclip import comm
from dinorankclip.config import OptimSettings
from dinorankclip.optim.gradients import NonFinite
from dinorankclip.optim.groups import parameter_groups
from dinorankclip.optim.schedule import learning_rate, warmup_length
from dinorankclip.types import Progress, UserError

LARGEST_LOGIT_SCALE = math.log(100.0)  # CLIP's
MOST_NAMED = 3  # parameters in a message


class Updater:
    """AdamW over every trainable parameter of the named modules, with its schedule."""

    def __init__(self, modules: dict[str, nn.Module], settings: OptimSettings, total_steps: int):
        named = {f"{part}.{n}": p for part, module in modules.items() for n, p in module.named_parameters()}
        self.parameters = {name: p for name, p in named.items() if p.requires_grad}
        if not self.parameters:
            raise UserError("--optim.freeze freezes everything: nothing is left to train")
        heads_eps = settings.eps if settings.heads_eps is None else settings.heads_eps
        self.optimizer = torch.optim.AdamW(
            parameter_groups(named, settings.weight_decay, rate_factor=settings.heads_rate, eps=heads_eps),
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            fused=True,
        )
        self.settings = settings
        self.total_steps = total_steps
        self.warmup = warmup_length(total_steps, settings.warmup_steps)

    def rate(self, step: int) -> float:
        """The schedule's; heads take `heads_rate` times it."""
        return learning_rate(step, self.total_steps, self.settings.lr, self.warmup)

    def step(self, progress: Progress, logit_scale: nn.Parameter) -> float:
        """Apply the gradients and clear them; returns their norm before clipping."""
        comm.mean_gradients(self.parameters.values())
        grads = [p.grad for p in self.parameters.values() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads)
        if not torch.isfinite(norm):
            refusal = NonFinite(self._broken_gradients(), "after averaging over all processes")
            self.optimizer.zero_grad()
            raise refusal
        if self.settings.clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self.parameters.values(), self.settings.clip_norm, norm)
        for group in self.optimizer.param_groups:
            group["lr"] = group["rate_factor"] * self.rate(progress.step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            logit_scale.clamp_(0.0, LARGEST_LOGIT_SCALE)
        return float(norm)

    def _broken_gradients(self) -> list[str]:
        bad = [n for n, p in self.parameters.items() if p.grad is not None and not p.grad.isfinite().all()]
        more = [f"and {len(bad) - MOST_NAMED} more"] if len(bad) > MOST_NAMED else []
        return [f"the gradient of {name}" for name in bad[:MOST_NAMED]] + more or ["the gradient's norm"]

    def state(self) -> dict[str, torch.Tensor]:
        """Optimiser state by parameter name, as plain tensors."""
        flat = {}
        for name, parameter in self.parameters.items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                flat[f"{name}/{key}"] = value
        return flat

    def load_state(self, flat: dict[str, torch.Tensor]) -> None:
        self.optimizer.state.clear()
        for entry, value in flat.items():
            name, key = entry.rsplit("/", 1)
            parameter = self.parameters[name]
            # AdamW's fused step counter lives on the parameter's device, like the moments.
            self.optimizer.state[parameter][key] = value.to(parameter.device)
