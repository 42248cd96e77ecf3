"""Shows a list under the Plackett–Luce model of any order, by the functions that training calls.

A list has an anchor pair and items, which are pairs of the set: an image and its first caption. From an image, the
anchor's image ranks the items' captions; from a caption, the anchor's caption ranks the items' images. As in equation 8
the reference order is that of the other modality, unless the run was trained with another reference.

Shapes: M items, K ≤ M listed positions, D embedding width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from dinorankclip.data.tokens import Tokenizer
from dinorankclip.losses.contrastive import unit_rows
from dinorankclip.losses.plackett_luce import corrected_nll, plackett_luce_nll, rankclip_nll, reference_order
from dinorankclip.losses.ranking import RankingLoss
from dinorankclip.losses.references import FixedTransitions
from dinorankclip.losses.telemetry import relative_spread
from dinorankclip.losses.transitions import TransitionHeads
from dinorankclip.models.aligned import AlignedModel
from dinorankclip.run_files import INERT_SPREAD, is_inert
from dinorankclip.serve.answers import Refused
from dinorankclip.serve.served_model import ServedModel
from dinorankclip.teachers.cache_read import TeacherCache
from dinorankclip.types import UserError

if TYPE_CHECKING:
    from dinorankclip.serve.state import ServedState

FEWEST, MOST = 4, 16
From = Literal["image", "caption"]
NO_PAIRS = "lists rank captions and images of pairs, and this set has no captions: use --data with pairs"


@dataclass
class List:
    """Holds one list: utilities θ [1, M], the reference [1, K], and the ranked items' rows [M, D]."""

    theta: Tensor
    reference: Tensor
    items: Tensor
    heads: Any  # TransitionHeads or FixedTransitions of the modality that is ranked; None without a ranking loss
    features: Tensor  # [M, ·] of fixed transitions
    loss: RankingLoss | None

    def corrections(self, order: Tensor, active: tuple[int, ...]) -> Tensor | None:
        """Return the corrections of active orders at the positions of a list [1, K]: [1, K, M]."""
        if not active:
            return None
        if isinstance(self.heads, FixedTransitions):
            return self.heads.queries(self.features @ self.features.T, order)
        (queries,), keys = self.heads(self.items, [order], active)
        return queries @ keys.T

    def nll(self, order: int) -> float:
        """Return the negative log-likelihood of the reference under a model of this order."""
        count, length = self.theta.shape[1], self.reference.shape[1]
        if order == 0:  # every remaining item is equally likely
            return math.lgamma(count + 1) - math.lgamma(count - length + 1)
        active = tuple(range(2, order + 1))
        if not active:
            eps = self.loss.rankclip_eps if self.loss is not None else 0.0
            return float(
                rankclip_nll(self.theta, self.reference, eps) if eps else plackett_luce_nll(self.theta, self.reference)
            )
        if isinstance(self.heads, FixedTransitions):
            return float(corrected_nll(self.theta, self.reference, self.corrections(self.reference, active)))
        (queries,), keys = self.heads(self.items, [self.reference], active)
        return float(plackett_luce_nll(self.theta, self.reference, queries, keys))

    def greedy(self, order: int) -> tuple[list[int], list[dict[int, float]]]:
        """Choose the likeliest item at every position; return the places of items, and probabilities by place."""
        chosen: list[int] = []
        steps = []
        active = tuple(range(2, order + 1))
        for position in range(self.theta.shape[1]):
            remaining = [place for place in range(self.theta.shape[1]) if place not in chosen]
            utilities = self.theta[0] if order else torch.zeros_like(self.theta[0])
            # A correction at a position depends on the positions before it alone, so the rest may have any order.
            corrections = self.corrections(torch.tensor([chosen + remaining]), active)
            if corrections is not None:
                utilities = utilities + corrections[0, position]
            shares = utilities[remaining].double().softmax(0)
            steps.append(dict(zip(remaining, shares.tolist())))
            chosen.append(remaining[int(shares.argmax())])
        return chosen, steps


class Lists:
    def __init__(self, state: ServedState) -> None:
        self._state = state

    def answer(self, id: str, by: From, anchor: int, items: list[int], order: int) -> dict[str, Any]:
        """Describe a list of items of the set, in the model of this order."""
        self._state.demand_ready()
        model, collection = self._state.model(id), self._state.collection
        if not collection.known_pairs:
            raise Refused(409, NO_PAIRS)
        if not FEWEST <= len(items) <= MOST or len(set(items)) != len(items):
            raise Refused(422, f"a list has {FEWEST} to {MOST} different items, not {len(items)}")
        rows, own = [collection.row(item) for item in items], collection.row(anchor)
        orders = describe_orders(model, "text" if by == "image" else "image")
        self._demand_order(model, order, orders)
        made, notes = self._list(model, by, own, rows)
        self._add_spread(orders, made, model)
        chosen, steps = made.greedy(order)
        beta, gamma = transition_tables(made, order, before=chosen[0])
        return {
            "order": order,
            "orders": orders,
            "theta": made.theta[0].tolist(),
            "beta": beta,
            "gamma": gamma,
            "gamma_before": items[chosen[0]] if gamma is not None else None,
            "sorted": [items[place] for place in chosen],
            "steps": [
                {
                    "position": position,
                    "chosen": items[place],
                    "probabilities": {str(items[at]): share for at, share in shares.items()},
                }
                for position, (place, shares) in enumerate(zip(chosen, steps), 1)
            ],
            "nll": made.nll(order),
            "reference": [items[place] for place in made.reference[0].tolist()],
            "ranked": "captions" if by == "image" else "images",
            "notes": notes,
        }

    def _demand_order(self, model: ServedModel, order: int, orders: list[dict[str, Any]]) -> None:
        known = {entry["order"]: entry for entry in orders}
        if order not in known:
            about = "it learnt no lists" if model.order == 0 else f"it was trained at order {model.order}"
            raise Refused(409, f"this model has orders 0 to {max(known)}, not {order}: {about}")
        if not known[order]["at_hand"]:
            raise Refused(409, known[order]["why"])

    def _list(self, model: ServedModel, by: From, anchor: int, items: list[int]) -> tuple[List, list[str]]:
        """Return the list as the run's loss would make it, and notes where that cannot be done here."""
        rows, collection = self._state.rows[model.id], self._state.collection
        first = np.searchsorted(collection.owner, np.arange(len(collection.usable)))  # the first caption of each image
        images, texts = (
            torch.from_numpy(np.array(table[places]))
            for table, places in ((rows.images, [anchor, *items]), (rows.texts, first[[anchor, *items]]))
        )
        asking, ranked = (images, texts) if by == "image" else (texts, images)
        loss, notes = model.ranking, []
        scaled = loss is None or loss.utility == "scaled"
        factor = float(model.loaded.parts.scale()) if scaled else 1.0
        if loss is not None and not loss.include_self and anchor in items:
            raise Refused(422, "this model's lists leave their own pair out: choose items without the anchor")
        prediction, other = asking[:1] @ ranked[1:].T, ranked[:1] @ asking[1:].T
        modality = "text" if by == "image" else "image"
        needed = {loss.reference, loss.transitions_from} if loss is not None else set()
        teacher = self._teacher(model, [anchor, *items], first) if "teacher" in needed else None
        if "teacher" in needed and teacher is None:
            notes.append("The teacher that gave the order of these lists is not at hand: the other modality gives it.")
        if loss is not None and loss.centred:
            notes.append("In training, corrections lose their mean over the batch, which one list does not have.")
        reference = other
        if loss is not None and loss.reference == "model":
            reference = prediction
        elif loss is not None and loss.reference == "teacher" and teacher is not None:
            seen = teacher["image" if by == "image" else "text"]
            reference = (seen[:1] @ seen[1:].T).masked_fill(torch.tensor(items) == anchor, torch.inf)
        length = len(items) if loss is None or loss.list_length is None else min(loss.list_length, len(items))
        features = ranked[1:]
        if loss is not None and loss.transitions_from == "teacher" and teacher is not None:
            features = teacher[modality][1:]
        heads = loss.transitions[modality] if loss is not None and loss.order >= 2 else None
        made = List(factor * prediction, reference_order(reference, length), ranked[1:], heads, features, loss)
        return made, notes

    def _teacher(self, model: ServedModel, rows: list[int], first: np.ndarray) -> dict[str, Tensor] | None:
        """Return unit-norm frozen features of pairs: by an aligned model's own towers, or of the run's cache; None if
        they are not at hand."""
        parts, collection = model.loaded.parts, self._state.collection
        if not isinstance(parts, AlignedModel):
            return self._cached(model, rows, first)
        pictures = [model.loaded.preprocess(collection.source.image(int(collection.usable[row]))) for row in rows]
        with model.lock, torch.inference_mode():
            images = parts.image_rows(parts.normalised(torch.stack(pictures).to(parts.device)))
            texts = parts.text_rows(parts.tokenizer()([collection.texts[first[row]] for row in rows]).to(parts.device))
        summaries = {
            "image": images[:, : parts.image_tower.own_summary],
            "text": texts[:, : parts.text_tower.own_summary],
        }
        return {name: unit_rows(table.clone().float().cpu()) for name, table in summaries.items()}

    def _cached(self, model: ServedModel, rows: list[int], first: np.ndarray) -> dict[str, Tensor] | None:
        """Return summaries of a teacher's cache. Those of images stand for captions that it does not have."""
        if model.teacher_cache is None:
            return None
        collection = self._state.collection
        keys = [collection.source.key(int(collection.usable[row])) for row in rows]
        try:
            cache = TeacherCache(model.teacher_cache, collection.split)
            found = {"image": cache.summaries(keys)}
            if cache.plan["text"] is not None:
                tokenizer = model.loaded.parts.tokenizer()
                assert isinstance(tokenizer, Tokenizer), "of a trunk"
                texts = TeacherCache(model.teacher_cache, collection.split, tokenizer=tokenizer)
                found["text"] = texts.texts([collection.texts[first[row]] for row in rows])["text_summary"]
        except (UserError, KeyError, OSError):
            return None
        if len(found["image"]) < len(rows):  # an image could not be read when the cache was made
            return None
        return {name: unit_rows(table.float()) for name, table in ({"text": found["image"]} | found).items()}

    @staticmethod
    def _add_spread(orders: list[dict[str, Any]], made: List, model: ServedModel) -> None:
        """Add how much each order moves this list, relative to its utilities."""
        active = tuple(entry["order"] for entry in orders if entry["order"] >= 2 and entry["at_hand"])
        if not active:
            return
        if isinstance(made.heads, FixedTransitions):
            queries, keys = made.corrections(made.reference, active), torch.eye(made.theta.shape[1])
            assert queries is not None, "orders act"
        else:
            (queries,), keys = made.heads(made.items, [made.reference], active)
        for order, spread in relative_spread(made.theta, made.reference, queries, keys, active).items():
            entry = next(entry for entry in orders if entry["order"] == order)
            entry["spread"] = spread
            if not model.inert and not entry["inert"] and is_inert(spread):
                entry |= {"inert": True, "why": f"On this list its corrections spread {spread:.1g} of the utilities'."}


def describe_orders(model: ServedModel, modality: str) -> list[dict[str, Any]]:
    """Describe the orders of a model, 0 and 1 of any, with the gates of lists that rank a modality.

    `at_hand` tells whether a list can be shown in this order.
    """
    loss = model.ranking
    orders: list[dict[str, Any]] = [
        {"order": 0, "inert": False, "why": "It ranks nothing: every order is equally likely.", "lambda": 0.0},
        {"order": 1, "inert": False, "why": None, "lambda": 1.0},
    ]
    if model.order == 0:
        orders[1]["why"] = "The model learnt no lists; these are its similarities as utilities."
    for order in range(2, model.order + 1):
        heads = loss is not None and loss.order >= order
        gate = float(loss.transitions[modality].gate(order)) if loss is not None and heads else 0.0
        inert, why = order in model.inert, None
        if not heads:
            why = "Its transition heads are not here: they lie beside the checkpoint of a run, and exports have none."
        elif inert:
            why = f"At the end of training its corrections spread less than {INERT_SPREAD:g} of the utilities'."
        orders.append({"order": order, "inert": inert or not heads, "why": why, "lambda": gate, "at_hand": heads})
    return [{"at_hand": True} | entry for entry in orders]


def transition_tables(made: List, order: int, before: int) -> tuple[list | None, list | None]:
    """Return β̃ and γ̃ [M, M] without their gates: a row for each item just listed, a column for each candidate.

    γ̃ stands after the pair (before, row). Cells of items in the history are None.
    """
    if order < 2 or made.heads is None:
        return None, None
    if isinstance(made.heads, FixedTransitions):
        table = made.heads.scale * (made.features @ made.features.T)
        table = table.fill_diagonal_(torch.nan)
        return _cells(table - table.nanmean(1, keepdim=True)), None
    assert isinstance(made.heads, TransitionHeads), "heads are learnt or fixed"
    beta = made.heads.centred_pairs(made.items)
    gamma = made.heads.centred_triples(made.items, before) if order >= 3 else None
    return _cells(beta), None if gamma is None else _cells(gamma)


def _cells(table: Tensor) -> list[list[float | None]]:
    return [[None if math.isnan(cell) else cell for cell in row] for row in table.tolist()]
