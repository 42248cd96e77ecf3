"""Scores a model: embeddings once, then scores with intervals, files, comparisons and the scores of `train`.

To add a score for evaluation sets:
  1. Write a class by the protocol `Scorer` in scores.py: name, version, `applies` and a call that yields `Score`s.
  2. Add it to `all_scorers` in suite.py; `score` then takes its name in --metrics, and `compare` reads its items.
  3. Name it in the help of --metrics (commands) and test it on a set whose answer is known.

embeddings.py          runs a model over images and captions; stores the rows
scores.py              `Score`, the protocol `Scorer`, and `EmbeddedSet`, which scorers read
suite.py               all scorers on all sets; shift and averages over sets
catalogue.py           the evaluation sets of the paper: sources, names and sizes
zero_shot.py           zero-shot classification, and its drop on renditions of a set
retrieval.py           R@k both ways
probe.py               linear probe, and its errors by family of classes
teacher_probe.py       linear probe of a teacher itself
logistic.py            the logistic regression of the probe, for a path of penalties
logistic_span.py       the softmax of that regression, and the best point in the span of known points
rank_metrics.py        Kendall, Spearman, NDCG with ties; ranking quality; agreement of the orders of two modalities
mismatched.py          captions that do not belong to their images, by a model
geometry.py            the gap between images and texts; gates and angles of fusion
fidelity.py            students beside their teacher
intervals.py           bootstrap intervals, and paired differences of two models
scores_file.py         reads and writes scores.json and the items beside it; two models side by side
examples.py            data for pictures: retrieval examples, hardest classes, embeddings in a plane
example_queries.py     what a few validation queries find at the first and the last validation of a run
gains.py               a fine-tuned model beside its start, on its own data and on a general set
blend.py               the final weights of a fine-tuned run: early stopping, and the mixture with the start
during_training.py     the scores that `train` takes before, during and after a run
"""
