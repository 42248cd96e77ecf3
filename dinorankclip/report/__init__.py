"""Reports, figures and pages. Numbers come from earlier rooms; here they become readable.

html.py            one writer of self-contained HTML files: templates, report pages, Markdown
figures.py         the look of all figures, a finished figure with its files, the curves of a run
pictures.py        pictures of photos and of the embedding plane, drawn with Pillow
run_findings.py    the examination of a run, for its report and for `doctor`
run_report.py      the report of one run
photo_pages.py     the page of a search, and the contact sheet of `data show`

The folder `templates` holds the HTML and the style of all pages.
"""
