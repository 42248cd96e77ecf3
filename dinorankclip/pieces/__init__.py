"""Deals out long work in pieces: to this process, to torchrun's ranks, to a SLURM array, or to Ray's workers.

Work is a list of numbered pieces. A piece is a pure function of model, data and number, and is committed by a rename or
an equal guarantee of its store: it is there whole, or not at all. So it does not matter who makes a piece, or whether
two do, and a lost worker costs at most its piece. `embed`, `teacher cache`, rows of frozen towers, scores of many sets
and studies are such work; `make_pieces` is the only way in.

contract.py    what work in pieces is (`Pieces`), its name for other processes (`Work`), where it runs (`Where`)
run.py         `make_pieces`: chooses the runner, shows progress, checks the result
account.py     who made what, in what time
here.py        this process, and the ranks of torchrun
crew.py        what workers of other machines share: a folder with the work, their notes and their claims
on_slurm.py    a SLURM array through submitit
on_ray.py      actors of Ray
"""
