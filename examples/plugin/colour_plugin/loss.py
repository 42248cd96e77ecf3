"""The method `margin`: InfoNCE, and the hardest wrong match at least LEAD below the right one (VSE++)."""

import torch

from dinorankclip.losses.groups import other_positives
from dinorankclip.methods import MethodTraits

LEAD, WEIGHT = 0.2, 1.0


def margin(objective, inputs):
    """Return the weighted term by name, and numbers for the log. `inputs.image` and `.text` hold unit rows of all
    processes; each process answers for its own rows, `inputs.own`, so that many processes equal one."""
    cosines = inputs.image @ inputs.text.T
    own = torch.arange(len(cosines), device=cosines.device)[inputs.own]
    right = cosines.diagonal()[own]
    hinges = []
    for rows in (cosines[own], cosines.T[own]):  # images among texts, texts among images
        wrong = rows.scatter(1, own[:, None], -1.0)  # cosine -1: the right match is no wrong one
        if inputs.groups is not None:  # pairs with the same image or caption are not wrong either
            wrong = wrong.masked_fill(other_positives(inputs.groups, own), -1.0)
        hinges.append((LEAD + wrong.amax(1) - right).clamp(min=0))
    rows = sum(hinges) / 2
    return {"margin": WEIGHT * rows.mean()}, {"violated": (rows > 0).float().mean().item()}


MARGIN = MethodTraits(
    "contrastive loss with a margin to the hardest wrong match",  # for the model card
    terms=("contrastive", "margin"),
    own_terms={"margin": margin},
    fixed_order=0,  # it ranks no lists
)
