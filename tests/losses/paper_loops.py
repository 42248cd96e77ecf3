"""Equations 6 to 8 of the paper with every switch, in plain loops over scalars. Shares no code with the package.

Numbers are 0-dimensional fp64 tensors, so that autograd differentiates the loops themselves. Above order 3 the paper
leaves the history encoder open; the loops follow the decided layer (one pre-norm transformer layer, read at the last
item). Rows are centred over the remaining candidates as the paper says, which the package leaves out.
"""

import math

import torch


def dot(a, b):
    return sum((x * y for x, y in zip(a, b)), start=torch.zeros((), dtype=torch.float64))


def times(matrix, vector):
    return [dot(row, vector) for row in matrix]


def plus(*vectors):
    return [sum(values[1:], start=values[0]) for values in zip(*vectors)]


def unit(v):
    length = torch.sqrt(dot(v, v))
    return [x / length for x in v]


def layer_norm(v):
    mean = sum(v) / len(v)
    variance = sum((x - mean) ** 2 for x in v) / len(v)
    return [(x - mean) / torch.sqrt(variance + 1e-5) for x in v]


def gelu(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


class Items:
    """The items of one modality as equation 7 sees them, with its heads and gates."""

    def __init__(self, rows, weights, gates):
        self.e = [[math.sqrt(len(row)) * x for x in row] for row in rows]  # √D · unit norm
        self.w, self.gates, self.seen, self.histories = weights, gates, {}, {}

    def history(self, r, past):
        """What W_q of order r reads; `past` holds r-1 items, the oldest first."""
        e = [self.e[item] for item in past]
        if r == 2:
            return e[0]
        w = {name.removeprefix(f"{r}."): value for name, value in self.w.items() if name.startswith(f"{r}.")}
        if r == 3:
            a, b = e
            product = [x * y for x, y in zip(a, b)]
            parts = ((w["first.weight"], a), (w["second.weight"], b), (w["product.weight"], product))
            return layer_norm(plus(*(times(matrix, vector) for matrix, vector in parts)))
        z = [plus(times(w["project.weight"], x), w["positional_embedding"][o]) for o, x in enumerate(reversed(e))]
        query = times(w["attend_query.weight"], layer_norm(z[0]))
        logits = [dot(query, times(w["attend_key.weight"], layer_norm(x))) / math.sqrt(len(query)) for x in z]
        heard = [torch.exp(x) for x in logits]
        values = [times(w["attend_value.weight"], layer_norm(x)) for x in z]
        mixed = plus(*([h / sum(heard) * x for x in value] for h, value in zip(heard, values)))
        g = plus(z[0], times(w["attend_out.weight"], mixed))
        hidden = [gelu(x) for x in plus(times(w["widen.weight"], layer_norm(g)), w["widen.bias"])]
        return layer_norm(plus(g, times(w["narrow.weight"], hidden), w["narrow.bias"]))

    def correction(self, r, past, d):
        """λ_r · Λ^(r) of candidate d, equation 7."""
        key = (r, past, d)
        if key not in self.seen:
            query, matrix = self.w[f"{r}.query.weight"], self.w[f"{r}.key.weight"]
            if (r, past) not in self.histories:
                self.histories[r, past] = times(query, self.history(r, past))
            score = dot(self.histories[r, past], times(matrix, self.e[d])) / math.sqrt(len(query))
            self.seen[key] = self.gates[r] * score
        return self.seen[key]

    def log_probability(self, theta, ranking, order, epsilon=0.0):
        """Equation 6: log P of a ranking of the candidates in `theta` (item → utility)."""
        total, remaining = torch.zeros((), dtype=torch.float64), sorted(theta)
        top = max(theta.values())  # with its gradient, which RankCLIP's public code has; without ε it cancels
        for k, chosen in enumerate(ranking):
            utility = dict(theta)
            for r in range(2, min(order, k + 1) + 1):
                scores = {d: self.correction(r, tuple(ranking[k - r + 1 : k]), d) for d in remaining}
                centre = sum(scores.values()) / len(remaining)
                utility = {d: utility[d] + scores[d] - centre for d in remaining}
            shifted = {d: utility[d] - top for d in remaining}
            normaliser = sum(torch.exp(shifted[d]) for d in remaining) + epsilon
            total = total + shifted[chosen] - torch.log(normaliser)
            remaining.remove(chosen)
        return total


def terms(image, text, scale, weights, gates, order, ramp, switch):
    """Return rank_in, rank_cross and gate_l1 of a batch. `weights` and `gates`: modality → name or order → tensor;
    `switch`: every option as a plain value."""
    v, t = [unit(row) for row in image], [unit(row) for row in text]
    pairs = range(len(v))
    s = scale.detach() if switch["detached_scale"] else scale
    s = torch.ones_like(scale) if switch["utility"] == "cosine" else s
    images, texts = (Items(rows, weights[side], gates[side]) for side, rows in (("image", v), ("text", t)))
    # (who ranks, what is ranked): predicted similarity of pair i, similarity that gives the reference order
    lists = {
        "cross": (("image", texts, v, t, t, v), ("text", images, t, v, v, t)),
        "in": (("image", images, v, v, t, t), ("text", texts, t, t, v, v)),
    }
    of_image, of_text = switch["direction_weights"]
    half = {"image": of_image / 2, "text": of_text / 2}
    found, positions = {}, 0
    for term, directions in lists.items():
        total = torch.zeros((), dtype=torch.float64)
        for owner, ranked, left, right, ref_left, ref_right in directions:
            for i in pairs:
                candidates = [d for d in pairs if switch["include_self"] or d != i]
                theta = {d: s * dot(left[i], right[d]) for d in candidates}
                reference = {d: dot(ref_left[i], ref_right[d]).item() for d in candidates}
                ranking = sorted(candidates, key=lambda d, reference=reference: (-reference[d], d))
                ranking = ranking[: switch["list_length"] or len(ranking)]
                positions = len(ranking)
                log_p = ranked.log_probability(theta, ranking, order, switch["rankclip_eps"])
                total = total - half[owner] * log_p / len(v)
        found[term] = total
    size = 1 / (16 * positions) if switch["size"] == "rankclip" else 1.0
    out = {f"rank_{term}": ramp * switch[f"{term}_weight"] * size * value for term, value in found.items()}
    l1_size = size if switch["gate_l1_size"] == "lists" else 1.0
    eta = switch["gate_l1"] or [1e-4, 1e-3, 1e-2, 1e-1]
    if order > 1:
        both = [eta[r - 2] * gates[side][r] for side in ("image", "text") for r in range(2, order + 1)]
        out["gate_l1"] = l1_size * sum(both)
    return out
