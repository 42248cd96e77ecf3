"""The caution beside scores of few images, which train and score both give."""

from __future__ import annotations

from dinorankclip.joint.card import FEW_SCORED


def caution(counts: dict[str, int]) -> str:
    """`counts`: images by the name of the part or set; "" if there are enough of each."""
    few = [f"{name} n = {count}" for name, count in counts.items() if count < FEW_SCORED]
    return f"so few images say little about the model: {', '.join(few)}" if few else ""
