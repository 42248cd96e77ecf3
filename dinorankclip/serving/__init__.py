"""A trained model at work: embeddings of whole collections, and search among photos.

embedding_run.py     a collection → embeddings, in parts that survive a kill
embedding_files.py   the folder they are written to        embedding_parquet.py  the same as a Parquet table
photo_search.py      words or a photo → the nearest photos photo_index.py        the kept index of a photo folder
model_on_demand.py   the model, loaded only if needed      query_memo.py         answers already computed
quick_text.py        a caption read in NumPy, with quick_layers.py and quick_fusion.py
"""
