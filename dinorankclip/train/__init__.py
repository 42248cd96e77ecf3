"""The run: from settings to a trained model in a folder, through kills and resumes.

assemble.py                Which students and which fusion a trained model (`--init`) goes on with.
checkpoints.py             All that a resumed run needs, and its way to disk and back without pickling.
cost.py                    What a run would cost, from three real steps: nothing is written.
distil_setup.py            Features of the right shapes that no teacher computed: a dry run times a step before any ca
ending.py                  The `dinorankclip train` command that gives some settings, to be named in advice and pasted
frozen_rows.py             Embeddings of the images of a source, computed once and kept: what a frozen image side says
gradients.py               From a batch to gradients: in one shot, or in two passes that hold the activations of one c
loop.py                    Ctrl-C and SIGTERM ask the loop to save and leave after the current step; a second Ctrl-C l
optimizer.py               Which parameters are decayed, which have a rate of their own, and which are not trained at
run_folder.py              What keeps a run from going on: settings that were others when it began, as they act on the
"""
