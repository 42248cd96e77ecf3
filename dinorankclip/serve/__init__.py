"""Serves one or two models over HTTP (`serve`), and shows them on pages (`explore`). Needs the extra `serve`.

state.py               everything that is served: models, the set, limits, token, readiness
served_model.py        one model: what it has and lacks, embeddings of queries
collection.py          the opened set: images and captions by index, and each model's rows of them
ranking_loss.py        the ranking loss of a model with its transition heads, from its checkpoint
app.py                 `create_app`: the application, its routes and what an error looks like
answers.py             JSON that is safe in any context, and errors as sentences
pages.py               the HTML pages; templates and assets lie beside it
guard.py               token, host, sizes and headers of every request
worker.py              bounded work in threads
long_work.py           work of seconds and minutes, done once, with its progress
api_search.py          routes: health, models, set, images, search, embeddings
api_duel.py            routes: two models on one query, and on the whole set
api_inside.py          routes: one image's tokens, lists, planes
api_data.py            routes: queues of doubtful data, runs
pictures.py            JPEGs of images by index, and of damaged images
nearest.py             nearest rows and ranks of rows
duel.py                two models on all queries: ranks, recalls, paired intervals
tokens.py              patch tokens of an image: colours, cosines, words, gates
lists.py               a list under the Plackett–Luce model of any order
planes.py              images in two dimensions, by each model
queues.py              damaged, near-duplicate, lowest-cosine and cut items of the set
runs.py                runs and their curves, as they grow
run_server.py          port, link, signals, and the note that `search` finds
"""
