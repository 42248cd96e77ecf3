"""Draws small pictures with captions at random: training data that needs no download.

The generator knows every scene, so it also yields graded relevance between scenes. One file a step:

    scene        scenes and the content of captions as data, to JSON and back; named random numbers
    drawing      colours and the pen
    subjects     the definition of a kind of thing; backgrounds
    kinds/       all kinds of things, with fine-grained families
    composition  random numbers → scene; relations between things
    rendering    scene → picture: plain, sketch, night, mosaic, watercolour
    wording      scene → captions
    relevance    scene or caption, scene → [0, 1]
    make         (set, split, index) → files of a sample; all sets → folder
"""
