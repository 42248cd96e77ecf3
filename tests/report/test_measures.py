"""Every score that the project takes has a sentence about it."""

import json
from pathlib import Path

import pytest
import torch

from dinorankclip.evaluate.fidelity import Fidelity
from dinorankclip.evaluate.geometry import MEASURES
from dinorankclip.evaluate.rank_metrics import order_agreement
from dinorankclip.evaluate.retrieval import retrieval_scores
from dinorankclip.evaluate.zero_shot import mean_and_drop
from dinorankclip.report.measures import WORDS, meaning, meanings

STORED = sorted(Path(__file__).parents[1].rglob("scores.json"))


def test_scores_of_stored_runs_are_explained():
    names = set()
    for path in STORED:
        stored = json.loads(path.read_text())
        names |= {name for one in stored.get("sets", {}).values() for name in one["scores"]} | set(
            stored.get("fidelity", {})
        )
    assert len(names) > 8 and [name for name in sorted(names) if not meaning(name)] == []


def test_scores_of_the_scorers_are_explained():
    rows = torch.nn.functional.normalize(torch.randn(12, 4), dim=-1)
    names = [score.name for score in retrieval_scores(rows, rows, [[f"caption {n}"] for n in range(12)])]
    names += [*order_agreement(rows, rows)[0], *MEASURES]
    names += [score.name for score in mean_and_drop([(torch.ones(3).numpy(), torch.ones(3).numpy())])]
    names += [f"{way} {name}" for way in ("i2t", "t2i", "i2i") for name in ("tau-b", "NDCG", "NDCG@10")]
    names += [f"features probe {name}" for name in ("accuracy", "mean per class", "errors in family")]
    names += ["T@1", "T@5", "mean per class", "T@1 sketch", "linear probe: embedding", "Fine-grained Probe: features"]
    assert Fidelity.numbers and [name for name in names if not meaning(name)] == []


def test_a_sentence_names_the_direction_and_the_number():
    assert meaning("t2i R@5") == (
        "Share of queries with a right item among the first 5: a caption is the query, and images are ranked by their "
        "similarity to it."
    )
    assert meaning("image gram distance").startswith(
        "Relative distance between the token similarities of image student"
    )


def test_unknown_scores_have_none():
    assert meaning("score of a plug-in") == "" and meanings(["T@1", "unknown", "T@1"]).keys() == {"T@1"}


@pytest.mark.parametrize("word", WORDS)
def test_words_end_as_sentences(word):
    assert WORDS[word][0].isalnum() and WORDS[word].endswith(".")
