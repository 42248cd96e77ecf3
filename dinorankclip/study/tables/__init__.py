"""The study's tables, as data. Each file holds the tables of one part of the paper."""
