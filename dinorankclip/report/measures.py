"""Explains in a sentence each score, and each other word of a report that is not everyday English.

`meaning` knows the names of all scorers; tests/report/test_measures.py compares them with what `score` writes. To
explain a new score, add a line to `_SCORES`; the first pattern that fits the whole name counts.
"""

from __future__ import annotations

import re

_DIRECTIONS = {
    "i2t": "an image is the query, and captions are ranked by their similarity to it",
    "t2i": "a caption is the query, and images are ranked by their similarity to it",
    "i2i": "an image is the query, and other images are ranked by their similarity to it",
}
_BRANCH = "(?P<branch>image|text) "

_SCORES = {
    r"(?P<way>i2t|t2i) R@(?P<k>\d+)(?:, captions apart)?": (
        "Share of queries with a right item among the first {k}: {way}."
    ),
    r"mean R@1(?:, captions apart)?": (
        "Mean of R@1 in both directions. Training calls the step with the best one `best`."
    ),
    r"chance R@1": "R@1 of a model that orders everything at random.",
    r"T@(?P<k>\d+)": (
        "Zero-shot: share of images whose class is among the first {k} when class names are ranked as texts."
    ),
    r"T@1 .+": "Zero-shot accuracy on this rendition of the classes.",
    r"mean T@1": "Mean zero-shot accuracy over the renditions, each counted alike.",
    r"mean per class": "Zero-shot accuracy, each class counted alike however many images it has.",
    r"drop": "Zero-shot accuracy lost from the base set to its renditions, in points.",
    r"relative drop": "The lost share of the base set's zero-shot accuracy.",
    r".+ probe accuracy": "Linear probe: accuracy of a linear classifier that was trained on the frozen rows.",
    r".+ probe mean per class": "Linear probe, each class counted alike.",
    r".+ probe errors in family": "Share of the linear probe's errors that stay in the right family of classes.",
    r"(?:linear probe|Fine-grained Probe): .+": "Mean linear-probe accuracy over several sets, each counted alike.",
    r"cone separation": "Angle between the mean image embedding and the mean text embedding: the modality gap.",
    r"(?P<branch>image|text) half-angle": (
        "Mean angle between {branch} embeddings and their own mean: how wide their cone is."
    ),
    r"centroid distance": "Distance between the mean image embedding and the mean text embedding.",
    r"in-modal tau-b": (
        "Kendall's τ-b between two orders of the other pairs: by image and by text similarity. 1 is the same order."
    ),
    r"in-modal rho": "Spearman's ρ between two orders of the other pairs: by image and by text similarity.",
    r"cross-modal tau-b": (
        "Kendall's τ-b between the order in which an image ranks captions and its caption ranks images."
    ),
    r"cross-modal rho": "Spearman's ρ between the order in which an image ranks captions and its caption ranks images.",
    r"(?P<way>i2t|t2i|i2i) tau-b": (
        "Kendall's τ-b between the model's order and the true graded relevance of the scenes: {way}."
    ),
    r"(?P<way>i2t|t2i|i2i) NDCG.*": (
        "Normalised discounted cumulative gain by the true graded relevance; 1 is the ideal order: {way}."
    ),
    _BRANCH + r"cosine": (
        "Mean cosine between the {branch} student, after one linear map, and its teacher, on held-out items."
    ),
    _BRANCH + r"cosine of the mean": (
        "The same cosine for the teacher's mean alone: what a constant answer reaches ({branch})."
    ),
    _BRANCH + r"centred cosine": "Cosine between {branch} student and teacher after the teacher's mean is taken off.",
    _BRANCH + r"above 0\.9": "Share of held-out items whose cosine between {branch} student and teacher exceeds 0.9.",
    _BRANCH + r"gram distance": (
        "Relative distance between the token similarities of {branch} student and teacher; 0 is equal."
    ),
    _BRANCH + r"own projector's cosine": (
        "Cosine between {branch} student and teacher through the projector that was trained."
    ),
    _BRANCH + r".+, n": "Number of held-out items behind the score of the same name ({branch}).",
}

WORDS = {
    "R@1, R@5, R@10": "Recall: the share of queries with a right item among the first 1, 5 or 10.",
    "chance": "The score of a model that knows nothing.",
    "interval over items": (
        "Where the score would lie for other items of the same kind; another seed may differ by more."
    ),
    "n": "Number of items behind a score.",
    "place": "Position of the first right item in a ranked list; place 1 is a hit.",
    "val, test": "Held-out parts of the data: val is looked at during training, test only at its end.",
    "pairs seen": "Pairs that training has processed; a pair counts again in each epoch.",
    "parameters of the loss alone": "Numbers that are trained with the loss and are not part of the model.",
    "contrastive": (
        "CLIP's loss (InfoNCE): each image must choose its caption among those of the batch, and the reverse."
    ),
    "ln B": "The contrastive loss of pure guessing in a batch of B pairs.",
    "inverse temperature": "exp(logit_scale), the factor on cosines before the softmax, bounded by 100.",
    "order": "How many ranked items one transition of the ranking loss looks at; 0 is CLIP, 1 is RankCLIP.",
    "λ": "Gate of an order of the ranking loss, from 0 (closed) to 1.",
    "spread": "Size of an order's corrections beside the spread of the scores that they correct.",
    "inert": "An order whose spread ended too low to change any ranking.",
    "gate α": "Share of the fused residual that enters the embedding, in each dimension.",
    "angle to the trunk's own": "Degrees by which fusion turns an embedding away from the trunk's.",
    "its bound": "Largest angle that the gate allows.",
}


def meaning(score: str) -> str:
    """Return a sentence about a score, by its name; empty for a score of an unknown scorer."""
    for pattern, sentence in _SCORES.items():
        if match := re.fullmatch(pattern, score):
            parts = match.groupdict() | {"way": _DIRECTIONS.get(match.groupdict().get("way", ""), "")}
            return sentence.format(**parts)
    return ""


def meanings(scores: list[str]) -> dict[str, str]:
    """Return the sentences of these scores, without those that nothing is known about."""
    return {name: sentence for name in dict.fromkeys(scores) if (sentence := meaning(name))}
