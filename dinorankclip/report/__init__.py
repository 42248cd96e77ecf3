"""Writes reports, figures and pages. Numbers come from earlier rooms; here they become readable.

html.py             one writer of self-contained HTML files: report pages, Markdown, pages of photos
figures.py         the look of all figures, a finished figure with its files, the curves of a run
pictures.py        pictures of photos and of the embedding plane, drawn with Pillow
measures.py        a sentence about each score and each other word of a report
example_pictures.py what example queries found before and after, hits and misses, the pictures of `score`
run_findings.py    the examination of a run, for its report and for `doctor`
folder_findings.py bytes that are not as they were written: checkpoints, exports, caches, embeddings; for `doctor`
machine_findings.py the environment: packages and extras, torch beside torchvision, device, weights, disk; for `doctor`
run_verdict.py     what the model of a run can do, and the advice by how the run was made
run_report.py      the report of one run
several_runs.py    several runs beside each other: a table, and curves over core-seconds

The folder `templates` holds the HTML and the style of all pages.
"""
