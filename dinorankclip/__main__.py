"""Runs `python -m dinorankclip …` and `torchrun … -m -- dinorankclip …`."""

from dinorankclip.commands.entry import main

main()
