"""A trained model at work: embeddings of whole collections, and search among photos.

embed_collection.py        A folder of embeddings that grows part by part and survives a kill.
index.py                   Recent queries of a photo index with their embeddings: asked again, they need no model at a
numpy_text.py              The few layers a text tower is made of, for one sequence, in NumPy. Shapes: L tokens, W wid
photo_search.py            A model that is loaded only when a question needs it.
"""
