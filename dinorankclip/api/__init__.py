"""Does what the commands do, as functions for notebooks and programs: `dinorankclip.train`, `score`, `search`.

The commands call these functions. Each is imported when it is first used.

checks.py      checks that functions and commands share
training.py    `train`: settings, data and callbacks → a trained run; the path of every run, also of studies
scoring.py     `score`: a model on evaluation sets, with intervals
searching.py   `search`: photos of a folder by words or by another photo
"""
