"""Embed once → scores with intervals. A new score is a class by the protocol in scores.py and a line in scorers.py.

suite.py            all scorers on all sets               seen.py             a set as scorers get it
embed.py            a model over images and captions      embedding_store.py  the same, kept on disk
scores.py           what a score and a scorer are         scorers.py          every scorer there is
evaluators.py       the cheap ones, during training       catalogue.py        the paper's sets, and how to get each

zero_shot.py        classes as mean prompts               retrieval.py        R@k both ways
shift.py            renditions of a base set              right_items.py      which captions are right for which images
fine_grained.py     errors inside families
probe_scorer.py     linear probes, with C chosen          probe.py            one probe
logistic.py         its solver (with logistic_problem.py, logistic_loss.py, logistic_span.py)
graded.py           graded relevance                      ranking_quality.py  τ-b and NDCG
rank_correlation.py Kendall and Spearman with ties        order_agreement.py  do modalities order alike?
modality_gap.py     cones and centroids                   inspection.py       gates and angles of fusion
fidelity.py         students against teachers             run_fidelity.py     the same of a run's folder

bootstrap.py        clustered intervals                   paired.py           two models, item by item
comparison.py       two scored models                     scored.py           scores read back
score_files.py      scores written                        run_data.py         what a run was trained on
pictures.py         examples worth looking at             projection.py       embeddings in the plane
"""
