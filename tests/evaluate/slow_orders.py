"""Agreement of two orders by plain loops, to check the fast forms against."""

import itertools
import math

import torch


def sign(x):
    return (x > 0) - (x < 0)


def slow_kendall(x, y):
    balance = a = b = 0
    for i, j in itertools.combinations(range(len(x)), 2):
        balance += sign(x[i] - x[j]) * sign(y[i] - y[j])
        a, b = a + (x[i] != x[j]), b + (y[i] != y[j])
    return balance / math.sqrt(a * b) if a * b else 0.0


def slow_ranks(x):
    ordered = sorted(x)
    return [(ordered.index(v) + len(x) - 1 - ordered[::-1].index(v)) / 2 for v in x]


def slow_spearman(x, y):
    a, b = torch.tensor(slow_ranks(x)).double(), torch.tensor(slow_ranks(y)).double()
    a, b = a - a.mean(), b - b.mean()
    return float(a @ b / (a.norm() * b.norm())) if a.norm() * b.norm() > 0 else 0.0
