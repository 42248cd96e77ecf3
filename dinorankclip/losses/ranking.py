"""Computes equation 8, ranking consistency in and across modalities, at any order; works without our trainer.

Each pair has four lists. A list ranks the items of one modality by one similarity (the prediction), in the order that
another similarity gives (the reference, without gradient):
  cross  image i ranks texts   as text i ranks images   | text i ranks images as image i ranks texts
  in     image i ranks images  as text i ranks texts    | text i ranks texts  as image i ranks images
Two other references: "model", the predicted similarity itself; "teacher", i first and then the items by frozen features
of the modality that ranks, so both lists of image i have the order of the image teacher, those of text i the text's.

Shapes: N own pairs, M pairs over all processes, D embedding width, K listed positions, H width of queries and keys.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn

from dinorankclip import distributed
from dinorankclip.losses.contrastive import unit_rows
from dinorankclip.losses.groups import gathered_groups, other_positives
from dinorankclip.losses.plackett_luce import mean_plackett_luce_nll, rankclip_nll, reference_order, symmetrised
from dinorankclip.losses.ranking_schedule import RAMP_TOP, active_orders, ranking_weight
from dinorankclip.losses.references import (
    REFERENCES,
    TRANSITIONS,
    Features,
    FixedTransitions,
    Gather,
    centred_table,
    gathered_teacher,
    mean_table_nll,
    teacher_similarities,
    unit_teacher,
)
from dinorankclip.losses.telemetry import SPREAD_ROWS, relative_spread
from dinorankclip.losses.transitions import TransitionHeads, centred_queries
from dinorankclip.run_files import gate_name, spread_name
from dinorankclip.types import LossTerms, Progress

# RankCLIP divides the sum of its two lists by 32; equation 8 takes their half-sum, which leaves 1/16. The division
# by the number of positions K is RankCLIP's /N. (D2) Equation 8 itself has neither: `sized`.
RANKCLIP_SIZE = 1 / 16
SIZES = ("rankclip", "equation")
GATE_L1_SIZES = ("lists", "plain")
GATE_L1 = {2: 1e-4, 3: 1e-3}  # η_r of the paper's table; ten times larger for each order above 3 (D11)
# Rows × items × positions of a list above which a CPU core is busy for seconds at order 2 or more, longer than with
# most models (docs/method.md has the costs). Whole lists get there at 407 pairs, the first 32 positions at 1,449.
LONG_LISTS, SHORT_LIST = 1 << 26, 32
Scale = Tensor | float  # exp(logit_scale)


def default_gate_l1(order: int) -> float:
    """Return the paper's η_r, the weight of the L1 penalty on an order's gate."""
    return GATE_L1[order] if order <= 3 else GATE_L1[3] * 10.0 ** (order - 3)


def sized(weight: float, length: int, size: str = "rankclip") -> float:
    """Return the factor of a list of K = `length` positions: weight/(16·K), RankCLIP's size, or the weight itself,
    which leaves equation 8's sum over positions as it is."""
    return weight * RANKCLIP_SIZE / length if size == "rankclip" else weight


class RankingLoss(nn.Module):
    """Computes the ranking terms without InfoNCE: `loss(image, text, scale).total`.

    image, text [N, D]: embeddings of the same pairs, normalised here. scale: exp(logit_scale), already exponentiated,
    which CLIP keeps at most 100.
    In a torch.distributed group each process gives its own pairs, not gathered, and gets the mean over them;
    average gradients over processes afterwards, those of this loss too, since orders have parameters:
    `distributed.mean_gradients` does so. DDP around a module that holds the loss needs find_unused_parameters=True,
    because an order has no gradient before its stage. Keep the loss in fp32 (embeddings may be half): a gate in bf16
    cannot take steps of 1e-3.

    Call `set_progress` before each step, and weights and orders follow the schedule. Without it they stay at the end of
    a schedule: full weight, every order. Exclude the gates and biases (parameters of less than two dimensions) from
    weight decay, which would open the gates.

    Order 0 ranks nothing: the value is that of uniform lists, a constant without gradient, so that InfoNCE beside it
    is CLIP. Order 1 is RankCLIP's likelihood of lists; each order above adds learned transitions between ranked items.

    From order 2 on, time grows as N·M·K for N own pairs, M pairs over all processes and K positions: on one CPU core
    whole lists of 512 and 1024 pairs cost seconds. The loss warns there. `list_length=32` is the remedy; it is not the
    default, since it changes what is learnt. docs/method.md has a table of costs.

    With ramp μ, factor c of the lists (`size`) and gates λ_r of both modalities, the terms are
        rank_in = μ·in_weight·c·L_in     rank_cross = μ·cross_weight·c·L_cross     gate_l1 = c·Σ_r η_r·λ_r
    with equation 8 as means over rows; `gate_l1_size="plain"` leaves c out of the last. `LossSettings` in config.py
    describes all options.
    """

    __call__: Callable[..., LossTerms]  # torch's own says Any
    transitions: Any  # nn.ModuleDict: modality → TransitionHeads or FixedTransitions

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
        backend: str = "auto",
        size: str = "rankclip",
        in_weight: float = 1.0,
        cross_weight: float = 1.0,
        direction_weights: tuple[float, float] = (1.0, 1.0),
        detached_scale: bool = False,
        gate_start: Sequence[float] | None = None,
        gate_l1: Sequence[float] | None = None,
        gate_l1_size: str = "lists",
        rankclip_eps: float = 0.0,
        reference: str = "paired",
        centred: bool = False,
        transitions: str = "learnt",
        transition_scale: float = 1.0,
        seed: int = 0,
    ):
        super().__init__()
        if reference not in REFERENCES or transitions not in TRANSITIONS:
            raise ValueError(
                f"reference is {', '.join(REFERENCES)}; transitions are {', '.join(TRANSITIONS)}; not {reference!r} "
                f"and {transitions!r}"
            )
        if transitions != "learnt" and order != 2:
            raise ValueError(f"transitions={transitions!r} has order 2 alone, not {order}")
        if rankclip_eps and (order != 1 or list_length is not None):
            raise ValueError("rankclip_eps reproduces RankCLIP's public loss, which is of order 1 over whole lists")
        if list_length is not None and list_length < 1:
            raise ValueError(f"list_length is at least 1, or None for whole lists; not {list_length}")
        if utility not in ("scaled", "cosine") or ramp not in ("rankclip", "paper"):
            raise ValueError(f"utility is scaled or cosine, ramp is rankclip or paper; not {utility!r} and {ramp!r}")
        if size not in SIZES or gate_l1_size not in GATE_L1_SIZES:
            raise ValueError(
                f"size is {' or '.join(SIZES)}, gate_l1_size is {' or '.join(GATE_L1_SIZES)}; not {size!r} and "
                f"{gate_l1_size!r}"
            )
        for name, values in {"gate_start": gate_start, "gate_l1": gate_l1}.items():
            if values is not None and len(values) != max(0, order - 1):
                raise ValueError(f"{name} has a number for each order from 2 to {order}; not {len(values)} numbers")
        self.dim = dim
        self.order, self.list_length, self.include_self = order, list_length, include_self
        self.utility, self.ramp, self.staged = utility, ramp, staged
        self.backend, self.rankclip_eps = backend, rankclip_eps
        self.size, self.detached_scale, self.direction_weights = size, detached_scale, direction_weights
        self.term_weights = {"in": in_weight, "cross": cross_weight}
        self.gate_l1 = {r: default_gate_l1(r) if gate_l1 is None else gate_l1[r - 2] for r in range(2, order + 1)}
        self.gate_l1_size = gate_l1_size
        self.reference, self.centred, self.transitions_from = reference, centred, transitions
        self.transitions = nn.ModuleDict(
            {
                modality: TransitionHeads(dim, order, head_dim, modality=modality, seed=seed, gate_start=gate_start)
                if transitions == "learnt"
                else FixedTransitions(transition_scale, gate_start)
                for modality in ("image", "text")
            }
        )
        self.progress: Progress | None = None
        self._warned = False

    def set_progress(self, step: int, total_steps: int, epochs: float) -> None:
        """Tell `forward` that `step` steps of `total_steps` are done, in a run of `epochs` epochs."""
        self.progress = Progress(step, total_steps, epochs)

    @property
    def needs_teacher(self) -> bool:
        """Return whether the loss takes an order or transitions from frozen features."""
        return self.order > 0 and "teacher" in (self.reference, self.transitions_from)

    def forward(
        self,
        image: Tensor,
        text: Tensor,
        scale: Scale,
        detailed: bool = False,
        groups: Tensor | None = None,
        teacher: Features | None = None,
    ) -> LossTerms:
        """Return the terms. `detailed` adds gates, spreads and unweighted values for a log line, at a small cost.

        `groups`, integers [N] or [N, C], keeps pairs that share a number out of each other's lists: class labels, say,
        or hashes of image, caption and product. A negative number is shared with no pair.
        `teacher`, frozen features {"image": [N, C], "text": [N, C']} of the pairs, is for reference or transitions
        "teacher".
        """
        self._check(image, text)
        first = distributed.world().rank * len(image)
        with torch.autocast(image.device.type, enabled=False):
            images, texts = unit_rows(distributed.gather_rows(image)), unit_rows(distributed.gather_rows(text))
            own = slice(first, first + len(image))
            everyone = gathered_groups(groups), gathered_teacher(teacher if self.needs_teacher else None)
            return self.own_rows(images, texts, own, scale, self.progress, detailed, *everyone)

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
        if {parameter.dtype for parameter in self.parameters()} & {torch.float16, torch.bfloat16}:
            raise ValueError(
                "the ranking loss was cast to half precision, in which its gates cannot learn: keep it in fp32 "
                "(loss.float()); embeddings may have any precision"
            )

    def own_rows(
        self,
        images: Tensor,
        texts: Tensor,
        own: slice,
        scale: Scale,
        progress: Progress | None,
        detailed: bool = False,
        groups: Tensor | None = None,
        teacher: Features | None = None,
    ) -> LossTerms:
        """Return the loss of rows `own` of unit-norm images and texts [M, D] with ids `groups` [M, C] and features
        `teacher` [M, C] of all processes, if any; without `progress`, at full weight."""
        if progress is None:
            active, mu = tuple(range(2, self.order + 1)), RAMP_TOP
        else:
            active = active_orders(self.order, progress, self.staged, self.ramp)
            mu = ranking_weight(progress, self.ramp)
        report: dict[str, float] = {"ranking_weight": mu, "active_order": max((min(self.order, 1), *active))}
        length = self._length(len(images))
        if active:
            self._warn_of_long_lists(len(images[own]), images, length)
        nll = self._nll(images, texts, own, scale, active, length, report if detailed else None, groups, teacher)
        terms = {
            f"rank_{name}": sized(mu * self.term_weights[name], length, self.size) * value
            for name, value in nll.items()
        }
        if active:
            size = self.size if self.gate_l1_size == "lists" else "equation"
            eta = {r: sized(self.gate_l1[r], length, size) for r in active}
            terms["gate_l1"] = reduce(add, [eta[r] * h.gate(r) for h in self.transitions.values() for r in active])
        if detailed:
            report |= {f"nll_{name}": value.item() for name, value in nll.items()}
            for modality, heads in self.transitions.items():
                report |= {gate_name(r, modality): heads.gate(r).item() for r in active}
        return LossTerms(reduce(add, terms.values()), terms, report)

    @torch.no_grad()
    def nll_with(
        self, image: Tensor, text: Tensor, scale: Scale, orders: tuple[int, ...], teacher: Features | None = None
    ) -> dict[str, float]:
        """Return the unweighted NLL of `in` and `cross` when only these orders above 1 act: leave one out to see its
        effect. Nothing is gathered from other processes."""
        with torch.autocast(image.device.type, enabled=False):
            whole, length = slice(0, len(image)), self._length(len(image))
            unit = unit_rows(image), unit_rows(text)
            nll = self._nll(*unit, whole, scale, orders, length, None, teacher=teacher, gather=_own_rows_alone)
        return {name: value.item() for name, value in nll.items()}

    def _nll(
        self,
        images: Tensor,
        texts: Tensor,
        own: slice,
        scale: Scale,
        active: tuple[int, ...],
        length: int,
        report: dict[str, float] | None,
        groups: Tensor | None = None,
        teacher: Features | None = None,
        gather: Gather = distributed.gather_rows,
    ) -> dict[str, Tensor]:
        """Return the terms of equation 8: each is the half-sum over its two lists, each the mean over own rows."""
        if self.order == 0:  # every remaining item is equally likely: log(M!/(M-K)!), a constant
            count = len(images) - (not self.include_self)
            constant = images.new_full((), math.lgamma(count + 1) - math.lgamma(count - length + 1))
            return {"in": constant, "cross": constant}
        image_text, text_image = images[own] @ texts.T, texts[own] @ images.T
        image_image, text_text = images[own] @ images.T, texts[own] @ texts.T
        if self.detached_scale and isinstance(scale, Tensor):
            scale = scale.detach()
        removed = self._removed(images, own, groups)
        frozen = unit_teacher(teacher, len(images)) if self.needs_teacher else {}
        seen = {name: teacher_similarities(f, own) for name, f in frozen.items()} if self.reference == "teacher" else {}
        nll: dict[str, list[Tensor]] = {"in": [], "cross": []}
        for modality, items, lists in (  # a list uses the heads of the modality it ranks (D6)
            ("image", images, {"cross": ("text", text_image, image_text), "in": ("image", image_image, text_text)}),
            ("text", texts, {"cross": ("image", image_text, text_image), "in": ("text", text_text, image_image)}),
        ):
            factor = scale if self.utility == "scaled" else 1
            references = [
                seen[ranks] if seen else prediction if self.reference == "model" else other
                for ranks, prediction, other in lists.values()
            ]
            orders = [reference_order(_without(each.detach(), removed), length) for each in references]
            utilities = [_without(factor * prediction, removed) for _, prediction, _ in lists.values()]
            counted = [None if removed is None else ~removed.gather(1, order) for order in orders]
            ranked = list(zip(utilities, orders, counted))
            if not active:
                values = [self._first_order(theta, order) for theta, order, _ in ranked]
            else:
                features = {"learnt": items, "model": items.detach()}.get(self.transitions_from, frozen.get(modality))
                values, spreads = self._corrected(modality, features, ranked, active, gather, report is not None)
                if report is not None:
                    report |= {spread_name(r, modality): sum(s[r] for s in spreads) / len(spreads) for r in active}
            for term, value in zip(lists, values):
                nll[term].append(value)
        (images_in, texts_in), (images_cross, texts_cross) = nll["in"], nll["cross"]  # by the modality that is ranked
        of_image, of_text = self.direction_weights  # by the modality that ranks
        return {
            "in": symmetrised(images_in, texts_in, (of_image, of_text)),
            "cross": symmetrised(images_cross, texts_cross, (of_text, of_image)),
        }

    def _first_order(self, theta: Tensor, order: Tensor) -> Tensor:
        if self.rankclip_eps:
            return rankclip_nll(theta, order, self.rankclip_eps).mean()
        return mean_plackett_luce_nll(theta, order, backend=self.backend)

    def _corrected(
        self,
        modality: str,
        items: Any,
        ranked: list[tuple[Tensor, Tensor, Tensor | None]],
        active: tuple[int, ...],
        gather: Gather,
        with_spreads: bool,
    ) -> tuple[list[Tensor], list[dict[int, float]]]:
        """Return the mean NLL of each list of `ranked` (utilities, order, positions that count) with the corrections
        of active orders, and their relative spreads. items [M, ·]: embeddings, or features of fixed transitions."""
        heads, orders = self.transitions[modality], [order for _, order, _ in ranked]
        if isinstance(heads, FixedTransitions):
            table = (items @ items.T).to(ranked[0][0].dtype)
            tables = [centred_table(table, y, counted, gather) if self.centred else table for _, y, counted in ranked]
            values = [
                mean_table_nll(t, y, each, heads.weight(), self.backend) for (t, y, _), each in zip(ranked, tables)
            ]
            queries = [heads.queries(each, y[:SPREAD_ROWS]) for each, y in zip(tables, orders)] if with_spreads else []
            keys = torch.eye(len(table), dtype=table.dtype, device=table.device) if with_spreads else table
        else:
            queries, keys = heads(items, orders, active)
            if self.centred:
                queries = [centred_queries(q, active, counted, gather) for q, (_, _, counted) in zip(queries, ranked)]
            values = [
                mean_plackett_luce_nll(theta, y, query, keys, backend=self.backend)
                for (theta, y, _), query in zip(ranked, queries)
            ]
        if not with_spreads:
            return values, []
        return values, [relative_spread(t, y, q, keys, active) for (t, y, _), q in zip(ranked, queries)]

    def _removed(self, items: Tensor, own: slice, groups: Tensor | None) -> Tensor | None:
        """Return which items take no part in each own row, bool [N, M]: without `include_self` the item itself, and
        other items of its groups. None if all take part."""
        if self.include_self and groups is None:
            return None
        rows = torch.arange(len(items), device=items.device)[own]
        if groups is None:
            removed = torch.zeros(len(rows), len(items), dtype=torch.bool, device=items.device)
        else:
            removed = other_positives(groups.to(items.device, non_blocking=True), rows)
        return removed if self.include_self else removed.scatter_(1, rows[:, None], True)

    def _warn_of_long_lists(self, rows: int, items: Tensor, length: int) -> None:
        """Warn once where lists take longer than most models and shorter lists would help."""
        long = length > SHORT_LIST and rows * len(items) * length > LONG_LISTS
        if long and items.device.type == "cpu" and not self._warned:
            self._warned = True
            warnings.warn(
                f"ranking {length} positions of {len(items)} pairs at order {self.order} takes seconds a step on a CPU "
                f"core, more than most models do: list_length={SHORT_LIST} (in training --loss.list-length "
                f"{SHORT_LIST}) ranks the first {SHORT_LIST} and keeps all pairs as candidates",
                stacklevel=2,
            )

    def _length(self, items: int) -> int:
        candidates = items - (not self.include_self)
        if candidates < 1:
            raise ValueError("a batch of one pair has nothing to rank without itself (include_self=False)")
        return candidates if self.list_length is None else min(self.list_length, candidates)


def _without(rows: Tensor, removed: Tensor | None) -> Tensor:
    return rows if removed is None else rows.masked_fill(removed, float("-inf"))


def _own_rows_alone(rows: Tensor) -> Tensor:
    return rows
