"""Tables, figures and pages. Numbers come from earlier rooms; here they only become readable.

figures.py                 Figures of a study or a run, one file each. Numbers come from earlier rooms; here they only
html.py                    A table as rows of short texts.
pictures.py                Small pieces of pictures: thumbnails with a coloured frame, wrapped text, a font. Everythin
run_report.py              The report of one run: how it went, what it learned, its scores and settings.
search_page.py             What a search found, as a page to look at: one file, no network, light or dark as the reade
"""
