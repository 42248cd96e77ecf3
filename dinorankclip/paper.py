"""What rooms before `study` need of the paper's own numbers, and the words that must stand beside any of them.

All its other numbers, by table and row, are in `study/paper_values.py`.
"""

from __future__ import annotations

LABEL = "paper (projected)"
# Millions of parameters that it states: of either student, and of the rank heads by order. Of towers and fusion it
# states none.
STUDENT_MILLIONS = 5.7
HEAD_MILLIONS = (0.0, 0.0, 0.16, 0.61, 1.32, 2.30)
