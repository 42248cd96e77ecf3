"""Uses a trained model: embeds whole collections, and searches among photos.

Call it to search: `dinorankclip.search("starter", "photos", "a red mug")`; the arguments are in
`help(dinorankclip.api.searching.search)`.

embed_collection.py    `embed`: images and captions → a folder of .npy and Parquet files that survives a kill
codes.py               rows of one byte a number, whose scan gives exact answers in bounded memory
embedded.py            `search` in a folder that `embed` has written
embed_collection.py    `embed`: a folder of .npy and Parquet files that survives a kill
embed_pieces.py        the parts of that folder as pieces of work, joined in order
index.py               embeddings of a folder of photos, brought up to date when photos change; recent queries
large_index.py         indexes of 10⁵ to 10⁹ rows: exact, graph, ivf; their recall, files and hashes
photo_search.py        `search`: the query, the index, and a model that is loaded only when it is needed
served.py              `search` through a running `serve`: its note, and the questions to it
background.py          neutral queries, which tell whether a query stands out on a collection
model_notes.py         the checkpoint behind a model's name, and what its held-out score says
numpy_text.py          a text tower in NumPy, so that a query in words needs no torch
"""

from dinorankclip.callable_room import make_callable

make_callable(__name__)
