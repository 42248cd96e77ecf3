"""Which items are right for which query, told by what both say: query → ids → items.

Images that share a caption are right for each other's, so that pairs grow with the square of how often it stands there.
They are therefore listed for a stretch of queries at a time, never all together.

Shapes: Q queries, G items, P right pairs of a stretch, K different ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RightItems:
    """Ids of query q are `ids[ends[q]:ends[q+1]]`, items of id k are `items[item_ends[k]:item_ends[k+1]]`; no item is
    reached twice from a query."""

    ids: Tensor
    ends: Tensor  # int64 [Q+1]
    items: Tensor
    item_ends: Tensor  # int64 [K+1]

    def __len__(self) -> int:
        return len(self.ends) - 1

    def pairs(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Queries, counted from `start`, and their right items: int64 [P] each."""
        ids = self.ids[self.ends[start] : self.ends[stop]]
        first, many = self.item_ends[ids], self.item_ends[ids + 1] - self.item_ends[ids]
        query = torch.arange(stop - start).repeat_interleave(self.ends[start : stop + 1].diff())
        inside = torch.arange(int(many.sum())) - (many.cumsum(0) - many).repeat_interleave(many)
        return query.repeat_interleave(many), self.items[first.repeat_interleave(many) + inside]

    def of(self, query: int) -> set[int]:
        return set(self.pairs(query, query + 1)[1].tolist())

    def counts(self) -> Tensor:
        """How many items are right for each query: int64 [Q]."""
        many = self.item_ends.diff()[self.ids]
        query = torch.arange(len(self)).repeat_interleave(self.ends.diff())
        return torch.zeros(len(self), dtype=torch.long).index_add_(0, query, many)


@dataclass(frozen=True)
class Right:
    texts: RightItems  # of images
    images: RightItems  # of texts


def right_items(captions: Sequence[Sequence[str]], equal_captions: bool = True) -> tuple[list[str], Right]:
    """All captions in image order, and what is right for images and for captions.

    Captions that read the same (spaces and case aside) are right for every image that has one of them. With
    `equal_captions` off they are not, as clip-benchmark has it: identical texts then compete with each other.
    """
    texts = [text for group in captions for text in group]
    known: dict[str, int] = {}
    said = [known.setdefault(" ".join(text.lower().split()), len(known)) for text in texts]
    id_of_text = torch.tensor(said, dtype=torch.long) if equal_captions else torch.arange(len(texts))
    kinds = len(known) if equal_captions else len(texts)
    image_of = torch.arange(len(captions)).repeat_interleave(torch.tensor([len(group) for group in captions]))
    # An image says the same twice if two of its captions are equal.
    image, its_id = torch.stack([image_of, id_of_text], 1).unique(dim=0).unbind(1)
    by_id = its_id.argsort(stable=True)
    images_of_id, texts_of_id = image[by_id], id_of_text.argsort(stable=True)
    return texts, Right(
        RightItems(its_id, _ends(image, len(captions)), texts_of_id, _ends(id_of_text, kinds)),
        RightItems(id_of_text, torch.arange(len(texts) + 1), images_of_id, _ends(its_id, kinds)),
    )


def _ends(groups: Tensor, count: int) -> Tensor:
    """Where each of `count` groups ends, if its members stand together in order; a zero in front."""
    sizes = torch.bincount(groups, minlength=count)
    return torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
