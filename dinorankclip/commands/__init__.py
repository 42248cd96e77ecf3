"""One file a verb, imported when it is called; `entry.py` finds it and turns errors into exit codes.

train.py  score.py  compare.py  embed.py  search.py  export.py  data.py  teacher.py  study.py  report.py  doctor.py

loading.py           the model a verb was given            training_scores.py   what `train` scores, and when
study_crew.py        `study run`, step by step             study_cell.py        one run of a study
foreign_flags.py     open_clip's flags, met at `train`     few_images.py        the caution beside few images
number_checks.py     numbers that no command can mean
"""
