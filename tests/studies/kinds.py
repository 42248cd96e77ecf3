"""Kinds of study of the paper, their measures and tables, as tests name them."""

from dinorankclip_studies.papers.dinorankclip import PAPER
from dinorankclip_studies.papers.dinorankclip.paper_tables import tables_of
from dinorankclip_studies.papers.dinorankclip.plans import STUDIES

SCENES, FLICKR8K, CC3M = (PAPER.kinds[kind] for kind in ("scenes", "flickr8k", "cc3m"))
EXPERIMENTS = tables_of("scenes")
CC3M_EXPERIMENTS = tables_of("cc3m")
FLICKR_EXPERIMENTS = STUDIES["flickr8k"]().experiments
