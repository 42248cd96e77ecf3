"""One file a verb, imported when it is called; `entry.py` finds it and turns errors into exit codes.

compare.py                 `dinorankclip compare A B`: two scored models side by side, item by item where items were k
data.py                    `dinorankclip data make|pack|pack-classes|show`: make the built-in pairs, convert data, loo
doctor.py                  Reads a run folder as a doctor would: is it learning, does its schedule fit, what went wron
embed.py                   `dinorankclip embed`: images and captions → embeddings with their keys, as NumPy and Parque
entry.py                   The `dinorankclip` command (`drc` for short): finds the verb, imports its module, turns err
export.py                  `dinorankclip export`: a model to give away, as a folder of ours, of open_clip's, or as ONN
report.py                  `dinorankclip report RUN|STUDY`: one HTML file to read, and a study's tables and figures as
score.py                   `dinorankclip score`: a model on evaluation sets, with intervals.
search.py                  `dinorankclip search`: find photos of a folder by words or by another photo.
shared.py                  The caution beside scores of few images, which train and score both give.
teacher.py                 `dinorankclip teacher cache`: compute a frozen teacher's features of a data set once.
train.py                   Flags of open_clip's trainer, met at `train`: what they are called here. docs from-open-cli
"""
