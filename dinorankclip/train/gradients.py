"""Computes gradients of a batch: in one pass, or in two passes that hold the activations of one chunk at a time.

The two passes (feature caching): encode all chunks without a graph; take the loss and its gradient at the embeddings
of the whole batch; encode each chunk again, with a graph, and push its rows of that gradient through. The loss only
ever sees whole-batch embeddings, so any loss will do, and the result is the gradient of one pass.
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
    """The encoder: images, texts and second texts in, embeddings out; `scale` is exp(logit_scale)."""

    def __call__(self, *inputs: Tensor | None) -> Embeddings: ...
    def scale(self) -> Tensor: ...


class NonFinite(UserError):
    """The step was not taken: a loss term or the gradient is infinite or not a number."""

    def __init__(self, broken: list[str], where: str):
        names = ", ".join(broken) if broken else "nothing here, see the other processes' messages"
        super().__init__(
            f"not finite {where}: {names}. The step was not taken. Usual causes: a learning rate too high, "
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
    device = placement.device
    whole = (batch.images, batch.texts, batch.second_texts)
    size = chunk or len(batch.keys)
    chunks = [
        tuple(None if t is None else t[start : start + size].to(device, non_blocking=True) for t in whole)
        for start in range(0, len(batch.keys), size)
    ]
    # Only a batch with teacher features has the argument: an objective without distillation need not know of it.
    features = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.teacher_features.items()}
    extra = {"teacher_features": features} if features else {}

    def loss_of(named: dict[str, Tensor]) -> LossTerms:
        return objective(Embeddings(named), model.scale(), progress, detailed, **extra)

    if len(chunks) == 1:
        with placement.autocast():
            embeddings = model(*chunks[0])
        named = {name: e.float() for name, e in embeddings.named.items()}
        terms = loss_of(named)
        _backward_to_embeddings(terms, [e for e in named.values() if compare_terms and e.requires_grad])
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
    _backward_to_embeddings(terms, [leaf for name, leaf in leaves.items() if name in learning])
    start = 0
    for part, state in zip(chunks, states):
        set_random_state(state, device)  # dropout, if any, repeats itself
        with placement.autocast():
            named = model(*part).named
        stop = start + size
        grads = {n: leaf.grad for n, leaf in leaves.items() if leaf.grad is not None and named[n].requires_grad}
        torch.autograd.backward(
            [named[n] for n in grads], [grad[start:stop].to(named[n].dtype) for n, grad in grads.items()]
        )
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


def _backward_to_embeddings(terms: LossTerms, compared_at: list[Tensor]) -> None:
    """`compared_at`: the embeddings at which the terms' gradients are compared; empty if they are not.

    Raises on every process if a term of any is not finite, before a backward whose exchanges would hang.
    """
    names = list(terms.terms)
    finite = torch.stack([terms.terms[name].detach().float() for name in names]).isfinite().tolist()
    broken = [name for name, good in zip(names, finite) if not good]
    if distributed.any_process(bool(broken))[0]:
        raise NonFinite(broken, f"on process {distributed.world().rank}")
    if compared_at:
        terms.report |= gradient_report(terms.terms, compared_at)
    terms.total.backward()


def random_state(device: torch.device) -> Tensor:
    """This process's torch generators as one uint8 tensor: the CPU's, then that of the GPU it trains on, if any.

    The tensor has the same size on every process.
    """
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)


def set_random_state(state: Tensor, device: torch.device) -> None:
    cpu = torch.get_rng_state().numel()
    torch.set_rng_state(state[:cpu])
    if device.type == "cuda" and state.numel() > cpu:
        torch.cuda.set_rng_state(state[cpu:], device)
