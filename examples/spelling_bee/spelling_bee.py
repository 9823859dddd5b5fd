"""A plugin: words to spell as tasks, a model that spells, a logger (docs/adapters.md).

pip install examples/spelling_bee
heldout tasks spelling
heldout run spelling:short --model speller:careful
"""

from heldout import Metric, Score
from heldout.adapters import AdaptedEval, Row, TaskAdapter
from heldout.models import FunctionEndpoint
from heldout.training.loggers import CallableLogger

LISTS = {"short": ["cat", "dog", "owl"], "long": ["onomatopoeia", "rhythm", "bureaucracy"]}


class SpellingBee(AdaptedEval):
    """A list of words; one is asked in one turn."""

    package, pass_threshold = "spelling-bee", 1.0

    def __init__(self, words, upper):
        self.name, self.words, self.upper = f"spelling:{words}", LISTS[words], upper

    def rows(self):
        for word in self.words:
            word = word.upper() if self.upper else word
            yield Row({"question": f"Spell {word!r} with a hyphen after each letter."}, word)

    def score(self, trajectory, sample):
        letters = trajectory.answer.strip().split("-")
        near = sum(a == b for a, b in zip(letters, sample.ground_truth, strict=False))
        right = letters == [*sample.ground_truth]
        return Score((Metric("right", right, 1.0), Metric("letters", near / len(letters))))


def load(name, *, upper=False):
    return SpellingBee(name, upper)


def open_speller(name, *, max_concurrent):
    hyphen = {"careful": "-", "careless": ""}[name]
    return FunctionEndpoint(lambda messages: hyphen.join(messages[-1].text.split("'")[1]))


def SpellingLog():
    return CallableLogger(lambda name, step, fields: print(f"spelt {name} at {step}"))


ADAPTER = TaskAdapter("spelling", "spelling-bee", ">=1", load, lambda: dict.fromkeys(LISTS))
