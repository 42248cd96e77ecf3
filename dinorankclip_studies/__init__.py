"""Makes studies: many runs at matched budgets, and the verdicts on a paper's claims that follow from them.

Where is a cell of a study defined? In cells.toml of the paper's folder in papers/: a name, a method, and the settings
that it changes. The module `plans` beside it puts cells, seeds, evaluation sets and tables together into the studies
`small`, `full`, `tuned`, `flickr8k` and `cc3m`. Cells become runs in study.py; `dinorankclip study plan NAME` lists
them.

How do I write a study of my own? In one file; the head of study_file.py shows one. `dinorankclip study plan FILE`
prints its cost and what its seeds can show, `study run` makes the runs, `study report` writes tables, verdicts and a
page. A package plugs such files in as entry points of the group `dinorankclip.studies`. A paper of your own, with
printed values and figures, is another folder in papers/.

define    study_file.py       a study from one file: cells, seeds, sets, tables, claims and their power
          own_study.py        a study file in the place of a paper; when its plan was made
          study.py            cells, runs, experiments, studies, and the key of a run
          papers/             one folder for each paper: cells, tables, claims, figures, printed values
run       command.py          `dinorankclip study plan|run|status|report|upper-bound|departures`
          plan.py             matched budgets; cost and progress of a study
          plan_at_scale.py    the plan at a paper's scale, with the paper's hours beside
          runners.py          `study run` step by step: tuning, local or SLURM runs, adopted results
          run_queue.py        the queue on disk: locks, failures, the next run
          queue_workers.py    worker processes and the pool that watches them
          run_cell.py         one run: teacher features, training, scoring, tidying
          run_times.py        how long runs and training steps take
judge     results.py          records of finished runs, results.json, tuned rates, chance levels
          verdicts.py         intervals, paired differences, rules of verdicts
          quantities.py       numbers that a claim is about
          claim.py            claims and their judges
write     material.py         results, tables and models of a study, opened for its report
          study_tables.py     tables from experiments and results
          table_files.py      tables as Markdown, LaTeX, CSV and traces
          claim_words.py      effects, sizes and counts of a verdict as words
          verdicts_beside.py  verdicts of studies of the same cells side by side
          claims_page.py      claims.md
          own_claims.py       claims.md of a study file
          departures.py       paper-departures.md: the paper's hyper-parameters beside recipe and presets
          upper_bound.py      linear probes of the teachers themselves
          study_report.py     the report as an HTML page and files, and the committed copies
"""
