"""From a batch to gradients: in one shot, or in two passes that hold the activations of one chunk at a time.

The two passes (feature caching): encode all chunks without a graph; take the loss and its gradient at the embeddings
of the whole batch; encode each chunk again, with a graph, and push its rows of that gradient through. The loss only
ever sees whole-batch embeddings, so it may be anything, and the result is the one-shot gradient.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from dinorankclip import distributed
from dinorankclip.device import Placement
from dinorankclip.losses.telemetry import gradient_report
from dinorankclip.types import Batch, Embeddings, LossTerms, Progress, UserError


class Model(Protocol):
    """What gradients are taken of: images, texts and second texts in, embeddings out; `scale` is exp(logit_scale)."""

    def __call__(self, *inputs: Tensor | None) -> Embeddings: ...
    def scale(self) -> Tensor: ...


class NonFinite(UserError):
    """The step was not taken: a loss term or the gradient is infinite or not a number."""

    def __init__(self, what: list[str], where: str):
        found = ", ".join(what) if what else "nothing here, see the other processes' messages"
        super().__init__(
            f"not finite {where}: {found}. The step was not taken. Usual causes: a learning rate too high, "
            "a damaged input, or weights that had already diverged."
        )


def backward(
    model: Model,
    objective: nn.Module,
    batch: Batch,
    progress: Progress,
    placement: Placement,
    chunk: int | None = None,
    detailed: bool = False,
    compare_terms: bool = False,
) -> LossTerms:
    """Leave gradients in the parameters of model and objective; return the loss terms of this process's rows.

    `detailed` asks the objective for the numbers of a log line; `compare_terms` adds the norm of each term's gradient
    at the embeddings and the cosines between terms (a backward pass of the loss for each term).
    """
    chunks = _chunks(batch, chunk or len(batch.keys), placement.device)
    if len(chunks) == 1:
        with placement.autocast():
            embeddings = model(*chunks[0])
        embeddings = Embeddings({name: e.float() for name, e in embeddings.named.items()})
        terms = objective(embeddings, model.scale(), progress, detailed, **_companions(batch, placement.device))
        _push(terms, [e for e in embeddings.named.values() if compare_terms and e.requires_grad])
        return terms
    beside = _companions(batch, placement.device)
    return _two_passes(model, objective, chunks, progress, placement, detailed, compare_terms, beside)


def _two_passes(
    model: Model,
    objective: nn.Module,
    chunks: list[tuple],
    progress: Progress,
    placement: Placement,
    detailed: bool,
    compare_terms: bool,
    beside: dict[str, dict[str, Tensor]],
) -> LossTerms:
    moved = _moved(model, chunks[0], placement) if compare_terms else set()
    states, parts = [], []
    with torch.no_grad():
        for part in chunks:
            states.append(_random_state(placement.device))
            with placement.autocast():
                parts.append(model(*part).named)
    leaves = {name: torch.cat([part[name] for part in parts]).float().requires_grad_() for name in parts[0]}
    after = _random_state(placement.device)
    terms = objective(Embeddings(leaves), model.scale(), progress, detailed, **beside)
    _push(terms, [leaf for name, leaf in leaves.items() if name in moved])
    start = 0
    for part, state in zip(chunks, states):
        _set_random_state(state, placement.device)  # dropout, if any, repeats itself
        with placement.autocast():
            named = model(*part).named
        stop = start + len(part[0])
        grads = {n: leaf.grad for n, leaf in leaves.items() if leaf.grad is not None and named[n].requires_grad}
        torch.autograd.backward(
            [named[n] for n in grads], [grad[start:stop].to(named[n].dtype) for n, grad in grads.items()]
        )
        start = stop
    _set_random_state(after, placement.device)
    return terms


def _chunks(batch: Batch, size: int, device: torch.device) -> list[tuple[Tensor | None, ...]]:
    whole = (batch.images, batch.texts, batch.second_texts)
    return [
        tuple(None if t is None else t[i : i + size].to(device, non_blocking=True) for t in whole)
        for i in range(0, len(batch.keys), size)
    ]


def _companions(batch: Batch, device: torch.device) -> dict[str, dict[str, Tensor]]:
    """The argument that only a batch with teacher_features has: an objective without distillation need not know of it."""
    moved = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.teacher_features.items()}
    return {"teacher_features": moved} if moved else {}


def _moved(model: Model, part: tuple[Tensor | None, ...], placement: Placement) -> set[str]:
    """Names of the embeddings that training moves, asked of one row: without a graph a frozen side looks like any."""
    state = _random_state(placement.device)
    with placement.autocast():
        named = model(*(None if t is None else t[:1] for t in part)).named
    _set_random_state(state, placement.device)  # a report must not change what dropout does
    return {name for name, e in named.items() if e.requires_grad}


def _push(terms: LossTerms, compared_at: list[Tensor]) -> None:
    """`compared_at`: the embeddings at which the terms' gradients are compared; empty if they are not."""
    demand_finite(terms)
    if compared_at:
        terms.report |= gradient_report(terms.terms, compared_at)
    terms.total.backward()


def demand_finite(terms: LossTerms) -> None:
    """Raise on every process if a term of any is not finite, before a backward whose exchanges would hang."""
    names = list(terms.terms)
    finite = torch.stack([terms.terms[n].detach().float() for n in names]).isfinite().tolist()
    bad = [name for name, good in zip(names, finite) if not good]
    if distributed.any_process(bool(bad))[0]:
        raise NonFinite(bad, f"on process {distributed.world().rank}")


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _set_random_state(state: tuple[Tensor, Tensor | None], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
