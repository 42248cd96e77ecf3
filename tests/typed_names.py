"""The types of the public names, as SPEC and README state them. `make lint` runs mypy on this file.

`assert_type` is an error of mypy where a type differs; when the file runs, it does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, assert_type

import dinorankclip
from dinorankclip import RankingLoss, UserError
from dinorankclip.losses import cone_separation, gram_loss, info_nce, plackett_luce_nll, rankclip_nll, rkd_loss
from dinorankclip.types import ImageSpec, LossTerms, TextSpec

if TYPE_CHECKING:
    import torch  # noqa: F401 (in quotes below)
    from torch import Tensor

    from dinorankclip.models.loaded import LoadedModel  # noqa: F401 (in quotes below)


def the_loss(image: Tensor, text: Tensor, scale: Tensor) -> LossTerms:
    loss = RankingLoss(8, order=3, head_dim=4)
    assert_type(loss, RankingLoss)
    loss.set_progress(1, 4, 64)
    terms = assert_type(loss(image, text, scale), LossTerms)
    assert_type(terms.total, "Tensor")
    assert_type(terms.terms, "dict[str, Tensor]")
    assert_type(terms.report, dict[str, float])
    return terms


def the_equations(image: Tensor, text: Tensor, scale: Tensor) -> list[Tensor]:
    theta, order = image @ text.T, (image @ text.T).argsort(dim=1, descending=True)
    values = [
        assert_type(info_nce(image, text, scale), "Tensor"),
        assert_type(plackett_luce_nll(theta, order), "Tensor"),
        assert_type(rankclip_nll(theta, order), "Tensor"),
        assert_type(gram_loss(image[None], text[None]), "Tensor"),
        assert_type(rkd_loss(image, text), "Tensor"),
        assert_type(cone_separation(image, text), "Tensor"),
    ]
    return values


def the_model(folder: str, captions: Sequence[str]) -> Tensor:
    model = dinorankclip.load_model(folder)
    assert_type(model, "LoadedModel")
    assert_type(model.image_spec, ImageSpec)
    assert_type(model.text_spec, TextSpec)
    assert_type(model.dim, int)
    assert_type(model.device, "torch.device")
    picture = assert_type(model.preprocess("photo.jpg"), "Tensor")
    assert_type(model.encode_image(picture[None]), "Tensor")
    return assert_type(model.encode_text(captions, normalize=True), "Tensor")


def the_rest() -> tuple[str, type[Exception]]:
    return assert_type(dinorankclip.__version__, str), UserError
