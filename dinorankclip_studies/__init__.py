"""Studies: many runs under matched budgets, and what follows from them for a paper's claims.

claim.py                   Who taught the cells of a claim, as their runs recorded it.
claims_page.py             docs claims.md: every claim of the paper with what was measured, the rule, and the verdict.
command.py                 `dinorankclip study plan|run|status`: many runs at equal pairs and steps.
material.py                The models that a study keeps (seed 0 of every cell) and the sets they were scored on, open
papers/
plan.py                    Matched budgets: cells of one table agree in pairs seen, steps, batch, data, trunk, start,
prepare.py                 What runs of a study share, made once: scenes before the workers start, teachers' features
quantities.py              Numbers a claim is about, one for each seed: scores of cells, differences and relative gain
queue_workers.py           A worker: takes one run after another from a study's queue until nothing is left, or until
results.py                 What a study has found, as everything after its runs reads it: `results.json` in the study
run_cell.py                What stays of a finished run: settings, log, scores; of seed 0 also the model and the heads
run_queue.py               The runs of a study on disk, so that any worker, here or on another machine, can take the n
run_times.py               How long runs take, from those that are finished; before there are any, from measured ratio
runners.py                 The same queue on a SLURM cluster: one array job, each element makes one run (through submi
study.py                   What a table of the study is made of: rows are cells, columns are scores, one row is what t
study_figures.py           Pictures that outlive the models they were drawn from.
study_files.py             What `report` writes for a study: the page, and tables, figures and claims as files of thei
study_page.py              The report of a study as one HTML file: what was compared, tables, figures, claims, cost, h
study_tables.py            An experiment and a study's results become a table: means over seeds, differences paired by
table_files.py             A table as rows of short texts, the same for every format: what was measured, the paper's v
verdicts.py                Means over seeds and differences paired by seed, with t-intervals and the smallest effect a
"""
