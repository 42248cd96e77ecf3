"""Adds a loss (loss.py), a teacher (teacher.py) and a study (study.toml) to DinoRankCLIP."""

from pathlib import Path

STUDY = Path(__file__).with_name("study.toml")
