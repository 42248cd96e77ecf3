"""The model, wired of trunk, students and fusion; how it lies on disk; what users get from `load_model`.

model.py            trunk + students + fusion                transitions.py      heads of orders 2 … R
histories.py        what an order sees of the ranks before   acting_orders.py    which orders acted in a run
folder.py           the model-folder format                  identity.py         which model is this?
loaded.py           `load_model` and its methods             inputs.py           what it refuses
pictures.py         any picture → pixels                     readings.py         all a model sees, for looking inside
trunk_features.py   features before the projection           open_clip_source.py `open_clip:…` as a model
undrawn.py          building without drawing weights         finite_rows.py      does it give numbers at all?
exporting.py        `export`, from name to folder            export_place.py     where it goes
export_folder.py    our format                               export_open_clip.py open_clip's
export_onnx.py      ONNX                                     trial_pairs.py      pairs to check an export with
provenance.py       how a model came about                   card.py             the same as a model card
vocabulary.py       the text side of an export
"""
