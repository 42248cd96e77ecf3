"""Small words put right: a or an, one or many, lists, and where adjectives go."""

from __future__ import annotations

from collections.abc import Sequence

NUMBERS = {2: "two", 3: "three", 4: "four"}
PAIR = ("pair of ", "pairs of ")


def article(words: str) -> str:
    """ "a" or "an" before these words. All our words beginning with a vowel letter begin with a vowel sound."""
    return "an" if words[0].lower() in "aeiou" else "a"


def with_adjectives(noun: str, adjectives: Sequence[str]) -> str:
    """Adjectives before the noun; "pair of scissors" takes them inside: "pair of red scissors"."""
    for head in PAIR:
        if noun.startswith(head):
            return head + " ".join([*adjectives, noun.removeprefix(head)])
    return " ".join([*adjectives, noun])


def listed(parts: Sequence[str]) -> str:
    """ "x", "x and y", "x, y and z"."""
    if len(parts) == 1:
        return parts[0]
    return ", ".join(parts[:-1]) + " and " + parts[-1]


def sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."
