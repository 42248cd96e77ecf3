"""The verbs of the `dinorankclip` command: one file a verb, imported when the verb is called.

entry.py      finds the verb, imports its file, turns errors into exit codes
shared.py     parsing, loading a model and checking flags, for several verbs
data.py       make, convert and look at image–caption pairs
data_check.py  examine pairs: damage, captions at the wrong photo, photos in two parts
teacher.py    compute a frozen teacher's features once
train.py      pretrain or fine-tune a model
score.py      score a model on evaluation sets
compare.py    two scored models side by side
report.py     write up a run or a study
embed.py      embeddings of images and captions as files
search.py     find photos by words or by another photo
serve.py      answer searches over HTTP
explore.py    look inside models on pages
export.py     a model to give away
push.py       upload a model to a hub
doctor.py     check the machine; print findings
doctor_path.py  check data, a run, or what was written

The verb `study` is in the package dinorankclip_studies.
"""
