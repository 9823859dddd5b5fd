"""What runs in worker processes: reasoning-gym's generators and scorers.

A worker has `PYTHONHASHSEED=0`, so families that depend on the order of sets are the same in every
run, and generators that seed the global `random` or numpy disturb no training. Some scorers pass an
answer to `eval`, or to sympy's parser, which evaluates it as Python: here `eval` reads literals
alone, and the parser gets formulas alone.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import json
import random
import re
from collections.abc import Callable
from typing import Any

MAX_FORMULA = 1000
_NAMES = re.compile(
    "(?:a|arc)?(?:sin|cos|tan|cot|sec|csc)h?|exp|log|ln|sqrt|cbrt|pi|[Aa]bs|sign|erf|gamma|factorial"
)
_WORD = re.compile(r"[^\W\d]\w*")
_FORMULA = re.compile(r"[\w\s.+\-*/^(),=|!]*", re.ASCII)
_ATTRIBUTE = re.compile(r"\.\s*[^\W\d]")


def prepare() -> None:
    """Import the package, and keep its scorers from running what a model wrote."""
    import sympy
    from sympy.parsing import sympy_parser

    importlib.import_module("reasoning_gym")
    for name in (
        "algorithmic.string_insertion",
        "algorithmic.spiral_matrix",
        "algorithmic.binary_matrix",
        "games.n_queens",
    ):
        module: Any = importlib.import_module(f"reasoning_gym.{name}")
        module.eval = ast.literal_eval
    parse = functools.partial(_parse_formula, sympy_parser.parse_expr)
    sympy.parse_expr = parse
    for name in ("games.countdown", "games.puzzle24"):
        module = importlib.import_module(f"reasoning_gym.{name}")
        module.parse_expr = parse


def _parse_formula(parse: Any, text: str, *args: Any, **kwargs: Any) -> Any:
    known = kwargs.get("local_dict") or {}
    for word in _WORD.findall(text):
        if len(word) > 1 and not _NAMES.fullmatch(word) and word not in known:
            raise SyntaxError(f"{word!r:.50} is no function of a formula")
    is_formula = _FORMULA.fullmatch(text) and not _ATTRIBUTE.search(text)
    if len(text) > MAX_FORMULA or not is_formula:
        raise SyntaxError(f"this is no formula: {text!r:.50}")
    return parse(text, *args, **kwargs)


@functools.lru_cache(maxsize=8)
def _dataset(family: str, settings: str) -> Any:
    from reasoning_gym.factory import create_dataset

    return create_dataset(family, **json.loads(settings))


def _entry(family: str, settings: str, index: int) -> Any:
    random.seed(index)  # a generator of list_functions draws from the global one
    return _dataset(family, settings)[index]


def generate(family: str, settings: str, start: int, stop: int) -> list[dict[str, Any]]:
    """Generate entries: question, answer, and the numbers that tell a hard one from an easy one."""
    rows = []
    for index in range(start, stop):
        entry = _entry(family, settings, index)
        metadata = entry["metadata"]
        difficulty = metadata.get("difficulty")
        facts = (difficulty if isinstance(difficulty, dict) else {}) | metadata
        numbers = {
            str(name): value
            for name, value in facts.items()
            if isinstance(value, bool | int | float) and name != "source_index"
        }
        answer = entry["answer"]
        answer = None if answer is None else str(answer)
        rows.append({"question": str(entry["question"]), "answer": answer, "metadata": numbers})
    return rows


def score(
    family: str, settings: str, index: int, question: str, text: str, tagged: bool
) -> tuple[float, str | None]:
    """Score what a model wrote, and return the answer that was read.

    The entry is generated again, since scorers want the tuples and sets that JSON does not have.
    """
    from reasoning_gym.utils import extract_answer

    answer = extract_answer(text) if tagged else text.strip()
    return _score(family, settings, index, question, lambda entry: answer), answer


def score_reference(family: str, settings: str, index: int, question: str) -> float:
    """Score the entry's own answer."""
    return _score(family, settings, index, question, lambda entry: entry["answer"])


def _score(
    family: str, settings: str, index: int, question: str, answer: Callable[[Any], str | None]
) -> float:
    entry = _entry(family, settings, index)
    if str(entry["question"]) != question:
        raise RuntimeError(f"item {index} of {family} has another question than when it was made")
    return float(_dataset(family, settings).score_answer(answer(entry), entry))


def families() -> list[str]:
    """List the names that `create_dataset` knows."""
    from reasoning_gym.factory import DATASETS

    return sorted(DATASETS)


def parameters(family: str) -> list[str]:
    """List the parameters of a family."""
    from reasoning_gym.factory import DATASETS

    _, config = DATASETS[family]
    return [field.name for field in dataclasses.fields(config)]


def system_prompts() -> dict[str, str]:
    """Return the package's system prompts by name."""
    from reasoning_gym.utils import SYSTEM_PROMPTS

    return dict(SYSTEM_PROMPTS)
