"""Every scorer there is. A new one is a class by the protocol in `scores`, and a line here."""

from __future__ import annotations

from dinorankclip.scoring.graded import RankingQualityScorer
from dinorankclip.scoring.modality_gap import ModalityGapScorer
from dinorankclip.scoring.order_agreement import OrderAgreementScorer
from dinorankclip.scoring.probe_scorer import ProbeScorer
from dinorankclip.scoring.retrieval import RetrievalScorer
from dinorankclip.scoring.scores import Scorer
from dinorankclip.scoring.zero_shot import ZeroShotScorer


def all_scorers(equal_captions: bool = True) -> list[Scorer]:
    return [
        RetrievalScorer(equal_captions),
        ZeroShotScorer(),
        ProbeScorer(),
        ModalityGapScorer(),
        OrderAgreementScorer(),
        RankingQualityScorer(),
    ]
