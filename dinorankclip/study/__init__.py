"""Many runs under matched budgets, and what follows from them for the paper's claims.

outline.py        what a study is                        definition.py      the studies there are
cell_list.py      every cell, by name                    cells.py           cell + seed → key
tables/           rows, columns, pairings                table_shapes.py, experiments.py   their shapes; all of them
matched.py        budgets that must agree                tuning.py          one grid for all, on validation
plan.py           cost before, progress during           costs.py           hours from finished runs
queue.py          runs on disk                           worker.py          takes one after another
running.py        processes here                         slurm.py           an array job
preparing.py      what runs share                        tidying.py         what stays of a run
results.py        results.json                           adopting.py        runs of another machine
effects.py        means and paired differences           verdicts.py        effects → verdicts
claims/           the paper's claims                     contradictions.py  where it contradicts itself
measures.py       our scores for its benchmarks          paper_values.py    its numbers
bench_figures.py  costs from docs/bench                  chances.py         what knowing nothing scores
near_misses.py    captions CLIP nearly gets right
"""
