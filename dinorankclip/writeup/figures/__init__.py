"""Figures of a study or a run, one file each. Numbers come from earlier rooms; here they only become pictures."""
