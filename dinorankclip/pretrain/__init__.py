"""The run: from settings to a trained model in a folder, through kills and resumes.

settling.py      which settings go together             assemble.py      settings → objects
loop.py          batch → step → log → save → score      state.py         all that a resume needs
checkpoints.py   whole or absent                        records.py       the run folder and its log
distilling.py    what teachers and fusion add           standin.py       a teacher's shapes, for timing
continued.py     what --init keeps of its model         changes.py       what keeps a run from going on
frozen.py        fine-tuning behind a frozen tower      image_rows.py    its images, embedded once
dry_run.py       what would it cost?                    budget.py        what was spent; may two be compared?
stopping.py      Ctrl-C saves and leaves                ending.py        why a run ended early
divergence.py    numbers that left the finite           damaged.py       samples that were replaced
checkup.py       what `doctor` finds                    command_line.py  settings → the command that gives them
"""
