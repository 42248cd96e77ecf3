"""The model of equations 6 and 7 in plain loops over Python floats. Shares no code with the package.

Reads the heads' numbers from a state dict and follows the paper (and, above order 3, the decided layer) term by term.
"""

import math


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def times(matrix, vector):
    return [dot(row, vector) for row in matrix]


def plus(*vectors):
    return [sum(values) for values in zip(*vectors)]


def norm(v):
    mean = sum(v) / len(v)
    variance = sum((x - mean) ** 2 for x in v) / len(v)
    return [(x - mean) / math.sqrt(variance + 1e-5) for x in v]


def gelu(x):
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


class Oracle:
    def __init__(self, state, items, order, item_scale):
        self.order = order
        self.w = {name: value.tolist() for name, value in state.items()}
        self.e = [[item_scale * x for x in row] for row in items.tolist()]
        self.corrections = {}

    def history(self, r, past):
        """The vector that W_q of order r is applied to; `past` oldest first."""
        e = [self.e[item] for item in past]
        name = f"heads.{r}."
        if r == 2:
            return e[0]
        if r == 3:
            w1, w2, w3 = (self.w[f"{name}{part}.weight"] for part in ("first", "second", "product"))
            both = [x * y for x, y in zip(e[0], e[1])]
            return norm(plus(times(w1, e[0]), times(w2, e[1]), times(w3, both)))
        part = {
            p: self.w[f"{name}{p}.weight"]
            for p in ("project", "attend_query", "attend_key", "attend_value", "attend_out", "widen", "narrow")
        }
        recent = list(reversed(e))  # offset 1 first
        z = [plus(times(part["project"], x), p) for x, p in zip(recent, self.w[name + "positional_embedding"])]
        query = times(part["attend_query"], norm(z[0]))
        logits = [dot(query, times(part["attend_key"], norm(x))) / math.sqrt(len(query)) for x in z]
        weight = [math.exp(x) for x in logits]
        attended = [0.0] * len(query)
        for w, x in zip(weight, z):
            value = times(part["attend_value"], norm(x))
            attended = [a + w / sum(weight) * v for a, v in zip(attended, value)]
        g = plus(z[0], times(part["attend_out"], attended))
        hidden = [gelu(x) for x in plus(times(part["widen"], norm(g)), self.w[name + "widen.bias"])]
        g = plus(g, times(part["narrow"], hidden), self.w[name + "narrow.bias"])
        return norm(g)

    def correction(self, r, past, candidate):
        """λ_r Λ^(r) of a candidate after the r-1 items of `past`, not centred."""
        key = (r, past, candidate)
        if key not in self.corrections:
            wq, wk = self.w[f"heads.{r}.query.weight"], self.w[f"heads.{r}.key.weight"]
            gate = 1 / (1 + math.exp(-self.w[f"gates.{r}"]))
            score = dot(times(wq, self.history(r, past)), times(wk, self.e[candidate]))
            self.corrections[key] = gate * score / math.sqrt(len(wq))
        return self.corrections[key]

    def log_probability(self, theta, ranking):
        """Equation 6 for one list. Order 0 ignores the utilities."""
        total, remaining = 0.0, list(range(len(theta)))
        for k, chosen in enumerate(ranking):
            utility = {}
            for d in remaining:
                utility[d] = theta[d] if self.order >= 1 else 0.0
                for r in range(2, min(self.order, k + 1) + 1):
                    utility[d] += self.correction(r, tuple(ranking[k - r + 1 : k]), d)
            total += utility[chosen] - math.log(sum(math.exp(u) for u in utility.values()))
            remaining.remove(chosen)
        return total
