"""Takes one training step: computes the gradients of a batch and applies the update of Muon and AdamW, or of AdamW.

A batch goes through in one pass, or in two passes that hold the activations of one chunk at a time (feature caching):
encode all chunks without a graph; take the loss and its gradient at the embeddings of the whole batch; encode each
chunk again, with a graph, and push its rows of that gradient through. The loss only ever sees whole-batch embeddings,
so any loss will do, and the result is the gradient of one pass.
The learning rate is a function of the step alone, so a resumed run follows the same curve.
On a GPU a step waits for nothing: whether it was finite stays there (`Watch`), and so does the decision to apply it.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dinorankclip import distributed
from dinorankclip.config import OptimSettings
from dinorankclip.device import Placement
from dinorankclip.losses.telemetry import gradient_report
from dinorankclip.train.muon import Muon, is_matrix
from dinorankclip.types import Batch, Embeddings, LossTerms, Progress, UserError

# Scales, shifts and scalars (norms, biases, gates, logit_scale, class tokens) have at most one dimension and are
# never decayed. Other parameters are matched by name, first match wins; an unmatched parameter is an error, so that a
# renamed layer fails loudly instead of silently landing in the wrong group.
RULES: tuple[tuple[str, bool], ...] = (
    *((pattern, False) for pattern in ("*.bias", "*cls_token", "*reg_token", "*.gamma")),
    *((pattern, True) for pattern in ("*positional_embedding", "*pos_embed*", "*_student.positions", "*latent*")),
    *((pattern, True) for pattern in ("*probe*", "*.proj", "*text_projection", "*weight", "*query", "*.lora_*")),
)
HEADS = "*transitions.*"  # matches the heads and gates of the orders above 1
# Each rate of OptimSettings and the parameters whose learning rate it multiplies; several may match a parameter.
RATES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("heads_rate", (HEADS,)),
    ("fusion_rate", ("*_fusion.*",)),
    ("gates_rate", ("*_fusion.gate.*", "*transitions.*.gates.*")),
    ("temperature_rate", ("*logit_scale",)),
)
# The place of a parameter in its tower, for `layer_decay`: the number of its block, or that it comes before all blocks.
BLOCK = re.compile(r"\.(?:resblocks|blocks|layers)\.(\d+)\.")
BEFORE_BLOCKS = re.compile(
    r"conv1|class_embedding|positional_embedding|ln_pre|token_embedding|patch_embed|pos_embed|cls_token|reg_token"
)
# Parts whose gradients `clip_apart` limits separately; the last entry takes the objective's other parameters.
PARTS = ("model.trunk.*", "model.*_student.*", "model.*_fusion.*", "objective." + HEADS, "*")
MOST_WARMUP_STEPS = 10_000  # the value of RankCLIP and of the paper
WARMUP_SHARE = 0.05  # short runs warm up over this share of their steps instead
LARGEST_LOGIT_SCALE = math.log(100.0)  # the bound in CLIP
MOST_NAMED = 3  # a message names at most this many parameters


class Model(Protocol):
    """Encodes images, texts and second texts; `scale` returns exp(logit_scale), `bias` the logit bias if it has one."""

    def __call__(self, *inputs: Tensor | None) -> Embeddings: ...
    def scale(self) -> Tensor: ...
    def bias(self) -> Tensor | None: ...


class NonFinite(UserError):
    """Reports that a step was not taken because a loss term or the gradient is infinite or not a number."""

    def __init__(self, broken: list[str], where: str, step: int | None = None):
        self.step = step  # steps done before it; None: the caller's count holds, since no step was taken after it
        names = ", ".join(broken) if broken else "nothing here, see the other processes' messages"
        super().__init__(
            f"not finite {where}: {names}. The step was not taken. Usual causes: a learning rate too high, "
            "a damaged input, or weights that had already diverged."
        )


class Watch:
    """Keeps on the device what was not finite, so that the host need not wait to learn that a step was good.

    `bad` turns from 0 to 1 at the first step that must not be applied, on every process. The optimisers leave weights
    and moments alone from then on, so that the host may learn of it later, at `look`, and finds nothing changed.
    """

    def __init__(self, device: torch.device) -> None:
        self.bad = torch.zeros((), device=device)
        self._terms: dict[str, Tensor] = {}
        self._steps: list[tuple[int, list[str], Tensor, list[str], Tensor]] = []  # since the last look

    def note_terms(self, terms: dict[str, Tensor]) -> None:
        self._terms = {name: value.detach().float() for name, value in terms.items()}

    def note_step(self, step: int, named: dict[str, nn.Parameter]) -> Tensor:
        """Note terms and averaged gradients of the step after `step` steps. Return the norm of all gradients."""
        grads = {name: p.grad for name, p in named.items() if p.grad is not None}
        norms = torch.stack([norm.float() for norm in torch._foreach_norm(list(grads.values()))])
        norm = torch.linalg.vector_norm(norms)
        terms = torch.stack([*self._terms.values(), norm.new_zeros(())]).isfinite()
        refused = distributed.any_on_device(1.0 - (terms.all() & norm.isfinite()).float())
        torch.maximum(self.bad, refused, out=self.bad)
        self._steps.append((step, list(self._terms), terms, list(grads), torch.cat([norms, norm[None]]).isfinite()))
        self._terms = {}
        return norm

    def look(self) -> None:
        """Wait for the steps noted so far. Raise, on every process, if one of them was not applied."""
        steps, self._steps = self._steps, []
        if not steps or not self.bad.item():
            return
        rank = distributed.world().rank
        bad = [distributed.any_process(not bool(terms.all() & grads.all()))[0] for _, _, terms, _, grads in steps]
        at, names, terms, parameters, grads = steps[bad.index(True)]
        broken = [name for name, good in zip(names, terms.tolist()) if not good]
        if distributed.any_process(bool(broken))[0]:
            raise NonFinite(broken, f"on process {rank}", at)
        broken = [name for name, good in zip(parameters, grads.tolist()) if not good]
        raise NonFinite(_gradients_of(broken), "after averaging over all processes", at)


def _gradients_of(broken: list[str]) -> list[str]:
    more = [f"and {len(broken) - MOST_NAMED} more"] if len(broken) > MOST_NAMED else []
    return [f"the gradient of {name}" for name in broken[:MOST_NAMED]] + more or ["the gradient's norm"]


def backward(
    model: Model,
    objective: nn.Module,
    batch: Batch,
    progress: Progress,
    placement: Placement,
    chunk: int | None = None,
    detailed: bool = False,
    compare_terms: bool = False,
    updater: Updater | None = None,
) -> LossTerms:
    """Leave gradients in the parameters of model and objective; return the loss terms of this process's rows.

    `detailed` asks the objective for the numbers of a log line; `compare_terms` adds the norm of each term's gradient
    at the embeddings and the cosines between terms (a backward pass of the loss for each term). With the `updater` that
    applies the gradients, they are exchanged while they are computed, and its watch checks the terms.
    """
    sending = updater.exchange.during_backward if updater else contextlib.nullcontext
    watch = updater.watch if updater else None
    device = placement.device
    whole = (batch.images, batch.texts, batch.second_texts)
    size = chunk or len(batch.keys)
    chunks = [
        tuple(None if t is None else t[start : start + size].to(device, non_blocking=True) for t in whole)
        for start in range(0, len(batch.keys), size)
    ]
    features = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.teacher_features.items()}
    # An objective gets an input that some batches or models lack only if there is one and `forward` names it: an
    # objective of another kind need not know of it.
    known = inspect.signature(objective.forward).parameters

    def loss_of(named: dict[str, Tensor]) -> LossTerms:
        optional: dict[str, Any] = {"teacher_features": features or None, "bias": model.bias(), "groups": batch.groups}
        given = {name: value for name, value in optional.items() if value is not None and name in known}
        return objective(Embeddings(named), model.scale(), progress, detailed, **given)

    if len(chunks) == 1:
        with placement.autocast():
            embeddings = model(*chunks[0])
        named = {name: e.float() for name, e in embeddings.named.items()}
        terms = loss_of(named)
        with sending():
            _backward_to_embeddings(terms, [e for e in named.values() if compare_terms and e.requires_grad], watch)
        return terms

    learning = _learning_names(model, chunks[0], placement) if compare_terms else set()
    states, parts = [], []
    with torch.no_grad():
        for part in chunks:
            states.append(random_state(device))
            with placement.autocast():
                parts.append(model(*part).named)
    leaves = {name: torch.cat([part[name] for part in parts]).float().requires_grad_() for name in parts[0]}
    after = random_state(device)
    terms = loss_of(leaves)
    _backward_to_embeddings(terms, [leaf for name, leaf in leaves.items() if name in learning], watch)
    start = 0
    for part, state in zip(chunks, states):
        set_random_state(state, device)  # dropout, if any, repeats itself
        with placement.autocast():
            named = model(*part).named
        stop = start + size
        grads = {n: leaf.grad for n, leaf in leaves.items() if leaf.grad is not None and named[n].requires_grad}
        own_rows = [grad[start:stop].to(named[n].dtype) for n, grad in grads.items()]
        with sending() if stop >= len(batch.keys) else contextlib.nullcontext():
            torch.autograd.backward([named[n] for n in grads], own_rows)
        start = stop
    set_random_state(after, device)
    return terms


def _learning_names(model: Model, part: tuple[Tensor | None, ...], placement: Placement) -> set[str]:
    """Run one row to see which embeddings require gradients: the first pass, without a graph, cannot tell."""
    state = random_state(placement.device)
    with placement.autocast():
        named = model(*(None if t is None else t[:1] for t in part)).named
    set_random_state(state, placement.device)  # a report must not change what dropout does
    return {name for name, e in named.items() if e.requires_grad}


def _backward_to_embeddings(terms: LossTerms, compared_at: list[Tensor], watch: Watch | None) -> None:
    """Run the backward pass; first compare the terms' gradients at the embeddings `compared_at`, if any. Raises on
    every process if a term of any process is not finite, before a backward pass whose exchanges would hang. With a
    `watch` every process runs the pass, and the watch tells later."""
    if watch is not None:
        watch.note_terms(terms.terms)
    else:
        _demand_finite(terms)
    if compared_at:
        terms.report |= gradient_report(terms.terms, compared_at)
    terms.total.backward()


def _demand_finite(terms: LossTerms) -> None:
    names = list(terms.terms)
    finite = torch.stack([terms.terms[name].detach().float() for name in names]).isfinite().tolist()
    broken = [name for name, good in zip(names, finite) if not good]
    if distributed.any_process(bool(broken))[0]:
        raise NonFinite(broken, f"on process {distributed.world().rank}")


def random_state(device: torch.device) -> Tensor:
    """Return the states of this process's CPU and GPU generators as one uint8 tensor, equally long everywhere."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)


def set_random_state(state: Tensor, device: torch.device) -> None:
    cpu = torch.get_rng_state().numel()
    torch.set_rng_state(state[:cpu])
    if device.type == "cuda" and state.numel() > cpu:
        torch.cuda.set_rng_state(state[cpu:], device)


def decayed(name: str, parameter: nn.Parameter) -> bool:
    if parameter.ndim <= 1:
        return False
    for pattern, decay in RULES:
        if fnmatchcase(name, pattern):
            return decay
    raise UserError(f"no weight-decay rule covers the parameter '{name}' {tuple(parameter.shape)}: add one to RULES")


def freeze(model: nn.Module, patterns: tuple[str, ...]) -> list[str]:
    """Switch off training of every parameter that matches; a pattern that matches nothing is an error."""
    frozen = []
    for pattern in patterns:
        hits = [(n, p) for n, p in model.named_parameters() if fnmatchcase(n, pattern)]
        if not hits:
            names = ", ".join(sorted({".".join(n.split(".")[:3]) for n, _ in model.named_parameters()}))
            raise UserError(f"--optim.freeze '{pattern}' matches no parameter; names begin with: {names}")
        for name, parameter in hits:
            parameter.requires_grad_(False)
            frozen.append(name)
    return frozen


def rate_factor(name: str, settings: OptimSettings) -> float:
    """Return the product of all rates that apply to a parameter: its share of the schedule's rate."""
    matching = (rate for rate, patterns in RATES if any(fnmatchcase(name, pattern) for pattern in patterns))
    return math.prod(getattr(settings, rate) for rate in matching)


def layer_factors(names: Iterable[str], decay: float) -> dict[str, float]:
    """Return decay ** (blocks above) of each parameter of the trunk; 1 for parameters of other parts."""
    blocks: dict[bool, int] = {}  # of the image tower, and of the text tower
    places: dict[str, int] = {}
    for name in names if decay != 1 else ():
        if name.startswith("model.trunk."):
            if match := BLOCK.search(name):
                places[name] = int(match[1])
                tower = ".visual." in name
                blocks[tower] = max(blocks.get(tower, 0), int(match[1]) + 1)
            elif BEFORE_BLOCKS.search(name):
                places[name] = -1
    return {name: decay ** (blocks.get(".visual." in name, 0) - 1 - place) for name, place in places.items()}


def parameter_groups(
    named: dict[str, nn.Parameter], settings: OptimSettings, layers: Mapping[str, float] = MappingProxyType({})
) -> list[dict]:
    """Return AdamW's groups of trainable parameters: decayed or not, the loss's heads apart from all others, and apart
    by `rate_factor` and the factor of their layer. Each group remembers its names in order."""
    heads_eps = settings.eps if settings.heads_eps is None else settings.heads_eps
    groups: dict[tuple[bool, bool, float], dict[str, Any]] = {}
    for name, parameter in named.items():
        if parameter.requires_grad:
            is_head, is_decayed = fnmatchcase(name, HEADS), decayed(name, parameter)
            factor = rate_factor(name, settings) * layers.get(name, 1.0)
            options = {
                "weight_decay": settings.weight_decay if is_decayed else 0.0,
                "rate_factor": factor,
                "eps": heads_eps if is_head else settings.eps,
            }
            group = groups.setdefault((is_head, not is_decayed, factor), {"params": [], "names": []} | options)
            group["params"].append(parameter)
            group["names"].append(name)
    return [groups[key] for key in sorted(groups)]


def optimisers(named: dict[str, nn.Parameter], settings: OptimSettings) -> list[torch.optim.Optimizer]:
    """Return the optimisers that share the trainable parameters: AdamW, and Muon if the settings name it."""
    matrices = {n: p for n, p in named.items() if settings.name == "muon" and p.requires_grad and is_matrix(n, p)}
    others = {name: parameter for name, parameter in named.items() if name not in matrices}
    layers = layer_factors(named, settings.layer_decay)
    found: list[torch.optim.Optimizer] = []
    if groups := parameter_groups(others, settings, layers):
        found.append(torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True))
    moved: dict[float, dict[str, Any]] = {}  # Muon's groups, by the factor of their layer
    for name, matrix in matrices.items():
        layer = layers.get(name, 1.0)
        about = {"rate_factor": settings.muon_rate * layer, "weight_decay": settings.weight_decay}
        group = moved.setdefault(layer, {"params": [], "names": []} | about)
        group["params"].append(matrix)
        group["names"].append(name)
    if moved:
        found.append(Muon(list(moved.values()), settings.lr, settings.muon_momentum, settings.muon_iterations))
    return found


def clip_gradients(named: dict[str, nn.Parameter], limit: float, norm: Tensor, apart: bool) -> None:
    """Scale gradients whose norm is above the limit down to it: `norm` of them all, or apart the norm of each part."""
    if not apart:
        torch.nn.utils.clip_grads_with_norm_(named.values(), limit, norm)
        return
    parts: dict[str, list[nn.Parameter]] = {}
    for name, parameter in named.items():
        if parameter.grad is not None:
            parts.setdefault(next(part for part in PARTS if fnmatchcase(name, part)), []).append(parameter)
    for parameters in parts.values():
        torch.nn.utils.clip_grad_norm_(parameters, limit)


def warmup_length(total_steps: int, asked: int | None = None) -> int:
    return asked if asked is not None else max(1, min(MOST_WARMUP_STEPS, round(WARMUP_SHARE * total_steps)))


def learning_rate(step: int, total_steps: int, peak: float, warmup: int) -> float:
    """Return the rate of the update after `step` updates: linear over `warmup`, then half a cosine to zero."""
    if step < warmup:
        return peak * (step + 1) / warmup
    share = (step - warmup) / max(1, total_steps - warmup)
    return 0.5 * peak * (1.0 + math.cos(math.pi * min(1.0, share)))


class Updater:
    """Applies the optimisers and their schedule to every trainable parameter of the named modules."""

    def __init__(self, modules: dict[str, nn.Module], settings: OptimSettings, total_steps: int):
        named = {f"{part}.{n}": p for part, module in modules.items() for n, p in module.named_parameters()}
        self.parameters = {name: p for name, p in named.items() if p.requires_grad}
        if not self.parameters:
            raise UserError("--optim.freeze freezes everything: nothing is left to train")
        self.optimizers = optimisers(named, settings)
        by_part = ([p for n, p in self.parameters.items() if n.startswith(f"{part}.")] for part in modules)
        self.exchange = distributed.GradientExchange(by_part)
        device = next(iter(self.parameters.values())).device
        self.watch = Watch(device) if device.type != "cpu" else None
        self.settings = settings
        self.total_steps = total_steps
        self.warmup = warmup_length(total_steps, settings.warmup_steps)

    def rate(self, step: int) -> float:
        """Return the rate of the schedule; a parameter uses `rate_factor` times this rate."""
        return learning_rate(step, self.total_steps, self.settings.lr, self.warmup)

    def step(self, progress: Progress, logit_scale: nn.Parameter) -> Tensor:
        """Average the gradients over processes, check, clip, apply and clear them; clamp the temperature. Returns the
        norm of the gradients before clipping."""
        self.exchange.finish()
        if self.watch is not None:
            norm = self.watch.note_step(progress.step, self.parameters)
        else:
            norm = torch.nn.utils.get_total_norm([p.grad for p in self.parameters.values() if p.grad is not None])
            if not torch.isfinite(norm):
                refusal = NonFinite(self._broken_gradients(), "after averaging over all processes")
                self._clear()
                raise refusal
        if self.settings.clip_norm is not None:
            clip_gradients(self.parameters, self.settings.clip_norm, norm, self.settings.clip_apart)
        for optimizer in self.optimizers:
            if self.watch is not None:
                optimizer.found_inf = self.watch.bad  # type: ignore[attr-defined]  # as GradScaler has a step skipped
            for group in optimizer.param_groups:
                group["lr"] = group["rate_factor"] * self.rate(progress.step)
            optimizer.step()
        self._clear()
        if logit_scale.requires_grad:  # a frozen temperature of published weights may be larger
            with torch.no_grad():
                logit_scale.clamp_(0.0, LARGEST_LOGIT_SCALE)
        return norm

    def look(self) -> None:
        """Raise `NonFinite` if a step since the last look was not applied; on a GPU this waits for the steps."""
        if self.watch is not None:
            self.watch.look()

    def _clear(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    def _broken_gradients(self) -> list[str]:
        broken = [n for n, p in self.parameters.items() if p.grad is not None and not p.grad.isfinite().all()]
        return _gradients_of(broken)

    def state(self) -> dict[str, Tensor]:
        """Return the optimiser state by parameter name, as plain tensors."""
        owners = self._owners()
        states = {name: owners[parameter].state.get(parameter, {}) for name, parameter in self.parameters.items()}
        return {f"{name}/{key}": value for name, state in states.items() for key, value in state.items()}

    def load_state(self, flat: dict[str, Tensor]) -> None:
        owners = self._owners()
        for optimizer in self.optimizers:
            optimizer.state.clear()
        for entry, value in flat.items():
            name, key = entry.rsplit("/", 1)
            parameter = self.parameters[name]
            # AdamW's fused step counter lives on the parameter's device, like the moments.
            owners[parameter].state[parameter][key] = value.to(parameter.device)

    def _owners(self) -> dict[nn.Parameter, torch.optim.Optimizer]:
        return {
            p: optimizer for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]
        }
