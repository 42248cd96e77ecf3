"""The DinoRankCLIP paper: its cells, tables, claims, figures and printed values."""
