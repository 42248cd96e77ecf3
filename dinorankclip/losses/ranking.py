"""Equation 8 as a module: ranking consistency in and across modalities, at any order. Usable without our trainer.

Four lists a pair. Each ranks the items of one modality by one similarity (the prediction), in the order that another
gives (the reference, without gradient):
  cross  image i ranks texts   as text i ranks images   | text i ranks images as image i ranks texts
  in     image i ranks images  as text i ranks texts    | text i ranks texts  as image i ranks images

Shapes: N own pairs, M pairs over all processes, D embedding width, K listed positions, H width of queries and keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dinorankclip import distributed
from dinorankclip.losses import weights
from dinorankclip.losses.contrastive import unit_rows
from dinorankclip.losses.plackett_luce import (
    Backend,
    mean_plackett_luce_nll,
    rankclip_nll,
    reference_order,
    symmetrised,
)
from dinorankclip.losses.telemetry import relative_spread
from dinorankclip.losses.transitions import TransitionHeads
from dinorankclip.run_files import gate_name, spread_name
from dinorankclip.types import LossTerms, Progress


@dataclass(frozen=True)
class RankedList:
    """What one list needs: utilities [N, M] of the ranked items and the reference similarities [N, M] they follow."""

    term: str  # "cross" or "in"
    prediction: Tensor
    reference: Tensor


class RankingLoss(nn.Module):
    """Ranking terms only (no InfoNCE): `loss(image, text, scale).total`.

    image, text [N, D]: embeddings of the same pairs, normalised here. scale: exp(logit_scale), already exponentiated,
    which CLIP keeps at most 100.
    In a torch.distributed group each process gives its own pairs, not gathered ones, and gets the mean over them;
    average gradients over processes afterwards, those of this loss too: orders have parameters. `comm.mean_gradients`
    does it; DDP around a module that holds the loss needs find_unused_parameters=True, since an order has no gradient
    before its stage. Keep the loss in fp32 (embeddings may be half): a gate in bf16 cannot take steps of 1e-3.

    Call `set_progress` before each step, and weights and orders follow the schedule; without it they stand where a run
    ends: full weight, every order. Its gates and biases (parameters of less than two dimensions) want no weight decay,
    which would open the gates by itself.

    Order 0 ranks nothing: the value is that of uniform lists, a constant without gradient, so that InfoNCE beside it
    is CLIP. Order 1 is RankCLIP's likelihood of lists; each order above adds learned transitions between ranked items.
    """

    transitions: Any  # nn.ModuleDict: modality → TransitionHeads

    def __init__(
        self,
        dim: int,
        order: int = 3,
        head_dim: int = 32,
        *,
        list_length: int | None = None,
        include_self: bool = True,
        utility: str = "scaled",
        ramp: str = "rankclip",
        staged: bool = True,
        backend: Backend = "auto",
        rankclip_eps: float = 0.0,
        seed: int = 0,
    ):
        super().__init__()
        if rankclip_eps and (order != 1 or list_length is not None):
            raise ValueError("rankclip_eps reproduces RankCLIP's public loss, which is of order 1 over whole lists")
        if list_length is not None and list_length < 1:
            raise ValueError(f"list_length is at least 1, or None for whole lists; not {list_length}")
        if utility not in ("scaled", "cosine") or ramp not in ("rankclip", "paper"):
            raise ValueError(f"utility is scaled or cosine, ramp is rankclip or paper; not {utility!r} and {ramp!r}")
        self.dim = dim
        self.order, self.list_length, self.include_self = order, list_length, include_self
        self.utility, self.ramp, self.staged = utility, ramp, staged
        self.backend, self.rankclip_eps = backend, rankclip_eps
        self.transitions = nn.ModuleDict(
            {m: TransitionHeads(dim, order, head_dim, modality=m, seed=seed) for m in ("image", "text")}
        )
        self.progress: Progress | None = None

    def set_progress(self, step: int, total_steps: int, epochs: float) -> None:
        """`step` steps of `total_steps` are done, in a run of `epochs` epochs."""
        self.progress = Progress(step, total_steps, epochs)

    def forward(self, image: Tensor, text: Tensor, scale: Tensor | float, detailed: bool = False) -> LossTerms:
        """`detailed` adds gates, spreads and unweighted values to the report (for a log line; costs a little)."""
        self._check(image, text)
        first = distributed.world().rank * len(image)
        with torch.autocast(image.device.type, enabled=False):
            images, texts = unit_rows(distributed.gather_rows(image)), unit_rows(distributed.gather_rows(text))
            return self.own_rows(images, texts, slice(first, first + len(image)), scale, detailed)

    def _check(self, image: Tensor, text: Tensor) -> None:
        if image.shape != text.shape:
            raise ValueError(
                f"image and text are embeddings of the same pairs, [N, {self.dim}] each; not "
                f"{list(image.shape)} and {list(text.shape)}"
            )
        if image.ndim != 2 or image.shape[1] != self.dim:
            raise ValueError(
                f"this loss was made for embeddings [N, {self.dim}], not {list(image.shape)}: RankingLoss(dim=…) takes "
                "their width"
            )
        kinds = {parameter.dtype for parameter in self.parameters()}
        if kinds & {torch.float16, torch.bfloat16}:
            raise ValueError(
                "the ranking loss was cast to half precision, in which its gates cannot learn: keep it in fp32 "
                "(loss.float()); embeddings may have any precision"
            )

    def own_rows(self, images: Tensor, texts: Tensor, own: slice, scale: Tensor | float, detailed: bool) -> LossTerms:
        """The loss of rows `own` among all unit-norm images and texts [M, D]."""
        if self.progress is None:
            active, mu = tuple(range(2, self.order + 1)), weights.RAMP_TOP
        else:
            active = weights.active_orders(self.order, self.progress, self.staged, self.ramp)
            mu = weights.ranking_weight(self.progress, self.ramp)
        report: dict[str, float] = {"ranking_weight": mu, "active_order": max((min(self.order, 1), *active))}
        length = self._length(len(images))
        nll = self._nll(images, texts, own, scale, active, length, report if detailed else None)
        # Equation 8, per position, in RankCLIP's size.
        terms = {f"rank_{name}": mu * weights.RANKCLIP_SIZE / length * value for name, value in nll.items()}
        if active:
            terms["gate_l1"] = weights.total(
                weights.gate_l1(r) * heads.gate(r) for heads in self.transitions.values() for r in active
            )
        if detailed:
            report |= {f"nll_{name}": value.item() for name, value in nll.items()}
            for modality, heads in self.transitions.items():
                report |= {gate_name(r, modality): heads.gate(r).item() for r in active}
        return LossTerms(weights.total(terms.values()), terms, report)

    @torch.no_grad()
    def nll_with(self, image: Tensor, text: Tensor, scale: Tensor | float, orders: tuple[int, ...]) -> dict[str, float]:
        """Unweighted NLL of `in` and `cross` when just these orders above 1 act: leave one out to see what it does.
        Of these pairs alone: nothing is gathered from other processes."""
        with torch.autocast(image.device.type, enabled=False):
            whole, length = slice(0, len(image)), self._length(len(image))
            nll = self._nll(unit_rows(image), unit_rows(text), whole, scale, orders, length, None)
        return {name: value.item() for name, value in nll.items()}

    def _nll(
        self,
        images: Tensor,
        texts: Tensor,
        own: slice,
        scale: Tensor | float,
        active: tuple[int, ...],
        length: int,
        report: dict[str, float] | None,
    ) -> dict[str, Tensor]:
        """Mean over rows and the two lists of each term; at order 0 that of uniform lists, a constant."""
        if self.order == 0:
            constant = images.new_tensor(weights.uniform_nll(self._candidates(len(images)), length))
            return {"in": constant, "cross": constant}
        image_text, text_image = images[own] @ texts.T, texts[own] @ images.T
        image_image, text_text = images[own] @ images.T, texts[own] @ texts.T
        # A list uses the heads of the modality it ranks (D6).
        ranked = {
            "text": [RankedList("cross", image_text, text_image), RankedList("in", text_text, image_image)],
            "image": [RankedList("cross", text_image, image_text), RankedList("in", image_image, text_text)],
        }
        nll: dict[str, list[Tensor]] = {"in": [], "cross": []}
        for modality, items in (("image", images), ("text", texts)):
            lists = ranked[modality]
            orders = [self._order(one.reference, own, length) for one in lists]
            utilities = [self._utility(one.prediction, own, scale) for one in lists]
            queries, keys = self.transitions[modality](items, orders, active) if active else ([None, None], None)
            for one, theta, order, query in zip(lists, utilities, orders, queries):
                nll[one.term].append(self._mean_nll(theta, order, query, keys))
            if report is not None and keys is not None:
                spreads = [relative_spread(t, o, q, keys, active) for t, o, q in zip(utilities, orders, queries)]
                report |= {spread_name(r, modality): sum(s[r] for s in spreads) / len(spreads) for r in active}
        return {term: symmetrised(*directions) for term, directions in nll.items()}

    def _mean_nll(self, theta: Tensor, order: Tensor, queries: Tensor | None, keys: Tensor | None) -> Tensor:
        if self.rankclip_eps:
            return rankclip_nll(theta, order, self.rankclip_eps).mean()
        return mean_plackett_luce_nll(theta, order, queries, keys, backend=self.backend)

    def _order(self, reference: Tensor, own: slice, length: int) -> Tensor:
        return reference_order(self._without_self(reference.detach(), own), length)

    def _utility(self, cosines: Tensor, own: slice, scale: Tensor | float) -> Tensor:
        theta = scale * cosines if self.utility == "scaled" else cosines
        return self._without_self(theta, own)

    def _without_self(self, rows: Tensor, own: slice) -> Tensor:
        if self.include_self:
            return rows
        itself = torch.zeros_like(rows, dtype=torch.bool)
        itself[:, own].fill_diagonal_(True)
        return rows.masked_fill(itself, float("-inf"))

    def _candidates(self, items: int) -> int:
        return items if self.include_self else items - 1

    def _length(self, items: int) -> int:
        candidates = self._candidates(items)
        if candidates < 1:
            raise ValueError("a batch of one pair has nothing to rank without itself (include_self=False)")
        return candidates if self.list_length is None else min(self.list_length, candidates)
