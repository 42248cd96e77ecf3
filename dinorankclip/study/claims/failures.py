"""The paper's three failure modes."""

from __future__ import annotations

from ..verdicts import SMALLEST
from .building import better, named, worse
from .quantities import ACCURACY, DECIDES, QUALITY, SHIFT, TOP1, gain, telemetry
from .shapes import AllEquivalent, AllHold, Claim

CLAIMS = (
    Claim(
        "failure-global-captions",
        "On captions that name a category and nothing local, the full method behaves like its order without teacher.",
        "Sec. 7, failure mode (i)",
        ("main", "components"),
        AllEquivalent(
            (named("full - rank-3, T@1 (prompts name a category alone)", gain("full", "rank-3", TOP1)),),
            SMALLEST["points"],
            also=(
                named("text gate at the end", telemetry("full", "fusion/end/text/gate/mean"), unit="number"),
                named("image gate at the end", telemetry("full", "fusion/end/image/gate/mean"), unit="number"),
            ),
        ),
        remark="zero-shot prompts are such captions; where T@1 itself is a few points, a margin of one is wide; gates "
        "start at 0.018, and are measured on scene captions",
    ),
    Claim(
        "failure-text-branch",
        "With a text teacher that is not aligned to the images, the image-only variant is preferable.",
        "Sec. 7, failure mode (ii)",
        ("components",),
        AllHold(
            (better("full-no-text", "full", ACCURACY, what=DECIDES),),
            also=(
                better("full-no-text", "full", TOP1, what="T@1"),
                better("full-no-text", "full", SHIFT, what="shift"),
            ),
        ),
        remark="the text teacher here, MiniLM, is a sentence encoder that never saw an image",
    ),
    Claim(
        "failure-warm-start",
        "The high-order head is sensitive to the warm-start: without stages it is worse.",
        "Sec. 4.3 (“essential”), Sec. 7, failure mode (iii)",
        ("warm-start",),
        AllHold(
            (worse("full-unstaged", "full", ACCURACY, what=DECIDES),),
            also=(
                worse("full-unstaged", "full", TOP1, what="T@1"),
                worse("full-unstaged", "full", QUALITY, what="ranking τ-b"),
            ),
        ),
    ),
)
