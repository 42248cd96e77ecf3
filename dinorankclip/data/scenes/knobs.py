"""Every number that decides how hard the built-in scenes are, in one place.

Whoever changes a number here, or anything that changes a byte of what is drawn or written, raises VERSION.
"""

from __future__ import annotations

VERSION = 2

# --- what is in a scene -------------------------------------------------------------------------------
THING_COUNTS = {1: 0.15, 2: 0.40, 3: 0.30, 4: 0.15}  # how many things, with probability
SIZES = {"small": 0.26, "medium": 0.36, "large": 0.50}  # longest side of a thing, as a share of the picture
SIZE_SPREAD = 0.02  # a thing's side is its size ± this share of the picture
SIZE_ODDS = {"small": 0.3, "medium": 0.4, "large": 0.3}
MOST_AREA = 0.50  # sum of the squared sides; a scene that exceeds it gets smaller things
P_TWIN = 0.15  # a further thing is another one of the same kind, colour and pattern
P_SIBLING = 0.15  # a further thing is another kind of the same fine-grained family
P_STACKED = 0.60  # a further thing rests on an earlier one, where one can carry it
P_PATTERNED = 0.35  # a thing that can have a pattern has one
COLOUR_JITTER = 14  # a named colour is drawn up to this far (of 255) from its standard value
TILT = 6.0  # degrees a thing may lean to either side

# --- what a caption says ------------------------------------------------------------------------------
CAPTIONS = 5  # captions of a scene
MANNERS = {"terse": 0.10, "usual": 0.45, "full": 0.45}  # how talkative a caption is
P_COLOUR = {"terse": 0.40, "usual": 0.85, "full": 1.00}
P_PATTERN = {"terse": 0.30, "usual": 0.75, "full": 1.00}  # given that there is one
P_SIZE = {"terse": 0.05, "usual": 0.25, "full": 0.50}
P_BACKGROUND = {"terse": 0.20, "usual": 0.55, "full": 0.85}
P_LEAVE_OUT = {"terse": 0.60, "usual": 0.25, "full": 0.05}  # each thing but the first chosen stays unmentioned
P_RELATION = {"terse": 0.25, "usual": 0.45, "full": 0.55}  # where two mentioned things stand in one
P_PLACE = {"terse": 0.05, "usual": 0.15, "full": 0.25}  # say where in the picture, where no relation is said
P_TOGETHER = 0.75  # things of one kind are counted ("two red mugs") instead of named one by one
P_GENERAL = 0.06  # say "a bird" for a sparrow
P_SYNONYM = 0.30  # say "a couch" for a sofa

# --- single things, for the classification sets -------------------------------------------------------
SINGLE_SIDE = (0.50, 0.80)  # longest side, as a share of the picture
