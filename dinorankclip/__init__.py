"""DinoRankCLIP: CLIP-style pretraining with high-order ranking, dense distillation and fair baselines.

Nothing heavy is imported here: `import dinorankclip` costs milliseconds.
"""

__version__ = "0.1.0"
