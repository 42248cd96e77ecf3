"""From a batch to changed weights.

gradients.py   one shot, or two passes in chunks (the same gradients)      update.py    average, clip, AdamW, clamp
groups.py      decay, rates and what is frozen, for every parameter        schedule.py  the rate at a step
damping.py     how much of Adam's step its epsilon leaves to the heads
"""
