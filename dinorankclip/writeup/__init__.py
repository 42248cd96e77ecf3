"""Tables, figures and pages. Numbers come from earlier rooms; here they only become readable.

report.py            the study as one page             run_report.py         a run as one page
study_files.py       all that `report` writes          study_material.py     what it is made of
study_figures.py     the figures in order              figures/              one file each
study_claims.py      verdicts of all studies           claims_page.py        docs/claims.md
tables.py            experiment + results → table      table_grids.py        as short texts
table_files.py       Markdown, LaTeX, CSV              table_notes.py        what a reader must know
plain_table.py       tables that are no grid
paired_differences.py  the decisive differences        best_orders.py        best order by suite
cost_tables.py       what was spent                    numbers.py            digits
paper_only.py        values beside nothing of ours     paper_words.py        projections and results, in words
kept_models.py       models a study keeps              kept_pictures.py      pictures that outlive them
surroundings.py      environment.json in words
page.py              one HTML file, all escaped        markdown_html.py      Markdown into it
search_page.py       what a search found               tiles.py              pieces of pictures
retrieval_picture.py, confusion_picture.py, projection_picture.py            pictures of `score`
"""
