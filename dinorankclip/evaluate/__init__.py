"""Embed once → scores with intervals. A new score is a class by the protocol in scores.py and a line in scorers.py.

catalogue.py               The paper's evaluation sets: where each is published or which command packs it, and what it
comparison.py              Two scored models side by side: a row for each score that both have.
during_training.py         Scores cheap enough to take during training.
embeddings.py              Run a model once over images and captions. One path for scores taken during training and fo
examples.py                Embeddings in two dimensions, for pictures: PCA, the same every time, or UMAP if it is inst
fidelity.py                How faithful students are to their teachers (D17), the same for every criterion and for bot
graded.py                  Ranking quality on sets whose relevance is graded: the built-in scenes, which know what is
intervals.py               Percentile bootstrap intervals, clustered: what was measured on one image is drawn, or left
logistic.py                The softmax loss of given logits, kept in a form that stays exact when a model is almost ce
modality_gap.py            How far apart images and texts lie (D26): cone separation, mean half-angles of both cones,
probe.py                   What the errors of a fine-grained probe are: classes that differ in small parts form famili
rank_metrics.py            Agreement of two orders, row by row, ties included: Kendall's τ-b and Spearman's ρ.
retrieval.py               Which items are right for which query, told by what both say: query → ids → items.
scores.py                  One number with what it is made of, and what a scorer is.
scores_file.py             What was scored of a model, read back: `scores.json` and, beside it, what each item contrib
suite.py                   Every scorer there is. A new one is a class by the protocol in `scores`, and a line here.
zero_shot.py               Zero-shot classification: each class is the mean of its prompts, an image belongs to the ne
"""
