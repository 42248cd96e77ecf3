"""The DinoRankCLIP paper: its cells, tables, claims, figures and printed values.

plans.py            studies and their cells (cells.toml)
paper_tables.py     tables of the studies (tables.toml)
paper_claims.py     claims that the studies judge (claims.toml)
extra_tables.py     best orders, paired differences, costs, values of the paper alone
paper_figures.py    list of the figures of a report
figures_orders.py   scores and costs over the order, data scaling
figures_geometry.py modality gap, embedding planes, transition heads
figures_method.py   diagram of the method, patch Grams, teacher and student
figures_examples.py confusions, fine-grained cases, retrieval won and lost
"""

from dinorankclip_studies.papers import Paper

PAPER = Paper(__name__, teacher="DINOv3")
