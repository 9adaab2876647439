"""What is asked: workloads, random words that nobody has cached, needles and the texts of the probes."""

import random
import re
from dataclasses import dataclass

from spec.model import Probe

WORKLOADS = {
    "prose": "Tell a short story about a lighthouse keeper who finds a letter.",
    "code": "Write a Python module that parses a CSV of measurements, with its unit tests.",
    "math": "Solve step by step for x and y: 3x + 4y = 26 and 5x - 2y = 0.",
    "counting": "Count from 1 to 200, with a comma and a space between the numbers.",
}
"""Prose, code and math are seed 000's three kinds of prompt; counting is seed 002's structured output."""

ARITHMETIC = Probe(prompt="What is 17 x 23?", answer="391")
"""The probe of seed 000's every pass."""

COUNTING_PROMPT = "Count from 1 to 200. Write only the numbers, with a comma and a space between them."
COUNTED_TO = 200
"""Seed 002's probe for corrupted long output: repeats, skips, or a jump into the prompt."""

REPEATED_PROMPT = "Explain in three paragraphs why the sky is blue."

_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_NONCE_WORDS = 4


@dataclass(frozen=True)
class Needle:
    """A number hidden in random words.

    Attributes:
        prompt: the words, the hidden sentence and the question.
        answer: the number.
    """

    prompt: str
    answer: str


def random_words(generator: random.Random, count: int) -> str:
    """Returns words that mean nothing and that no earlier run has used, since the seed is fresh."""
    return " ".join(_word(generator) for _ in range(count))


def fresh(generator: random.Random, prompt: str) -> str:
    """Returns a prompt that begins with random words, so that no server has its beginning in a cache."""
    return f"({random_words(generator, _NONCE_WORDS)}) {prompt}"


def needle(generator: random.Random, words: int, depth: float) -> Needle:
    """Hides a number at a depth (0 is the beginning, 1 the end) of so many random words."""
    name, number = _word(generator).capitalize(), str(generator.randrange(10_000, 100_000))
    before = round(words * depth)
    return Needle(
        f"{random_words(generator, before)}. The number of {name} is {number}. "
        f"{random_words(generator, words - before)}. What is the number of {name}? Answer with the number alone.",
        number,
    )


def counting_fault(text: str) -> str | None:
    """Says where a text that should count from 1 to 200 goes wrong; none if it does not."""
    numbers = [int(found) for found in re.findall(r"\d+", text)]
    for position, number in enumerate(numbers[:COUNTED_TO], 1):
        if number != position:
            before = ", ".join(map(str, numbers[max(0, position - 4) : position - 1])) or "the beginning"
            return f"after {before} comes {number} in place of {position}"
    if len(numbers) < COUNTED_TO:
        return f"it ends after {len(numbers)} numbers"
    if len(numbers) > COUNTED_TO:
        return f"it goes on after {COUNTED_TO}, with {numbers[COUNTED_TO]}"
    return None


def _word(generator: random.Random) -> str:
    return "".join(generator.choice(_CONSONANTS) + generator.choice(_VOWELS) for _ in range(generator.randrange(2, 4)))
