"""Papers whose claims a study measures, one folder each."""
