"""The pages of examples in docs/graders/, made of the tables that the graders' tests run.

    python -m tests.scoring.pages          writes them anew

A page says what a grader does (its docstring), how a rubric uses it (a block that
tests/test_docs.py runs), and what it makes of every example. `tests/scoring/test_pages.py` fails
where a page is not what the tables say.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heldout.scoring import (
    choice,
    formats,
    json_schema,
    lists,
    math,
    number,
    regex,
    text,
    tool_calls,
)
from heldout.scoring.code import grader as code
from tests.scoring.examples import Example
from tests.scoring.examples import answers as of_answers
from tests.scoring.examples import choice as of_choice
from tests.scoring.examples import code as of_code
from tests.scoring.examples import formats as of_formats
from tests.scoring.examples import json_schema as of_schema
from tests.scoring.examples import lists as of_lists
from tests.scoring.examples import math as of_math
from tests.scoring.examples import number as of_number
from tests.scoring.examples import regex as of_regex
from tests.scoring.examples import text as of_text
from tests.scoring.examples import tool_calls as of_calls

INSTALL = "([how to install it](../../README.md#install))"

FOLDER = Path(__file__).parents[2] / "docs" / "graders"
MADE = "<!-- Made by `python -m tests.scoring.pages` of tests/scoring/examples; not by hand. -->"


@dataclass(frozen=True, slots=True)
class Table:
    examples: Sequence[Example]
    heading: str = ""
    columns: tuple[str, str] = ("answer", "target")
    """What the examples' answers and targets are; without a second one, there is no target."""


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    graders: tuple[Callable[..., Any], ...]
    usage: str
    tables: tuple[Table, ...]
    note: str = ""


def _correct(name: str, options: str = "", *checks: str) -> str:
    """How most graders are used: one part of a rubric, called `correct`."""
    made = f'score_fn = Rubric(part({name}, name="correct"{options}))'
    lines = [f"from heldout.scoring import Rubric, {name}, part", "", made]
    return "\n".join([*lines, *checks])


PAGES: Mapping[str, Page] = {
    "stated_answer": Page(
        "The stated answer",
        (),
        "from heldout.scoring import grade_exact\n\n"
        'assert grade_exact("I first thought 41.\\n\\n**Answer:** 42", "42").value == 1.0\n'
        'assert grade_exact("Answer: 41\\nAnswer: 42", "42").note.startswith("ambiguous")',
        (Table(of_answers.STATED, columns=("reply", "")),),
        note="What graders read of a reply that states an answer, where any text may be one. Those "
        "of letters, numbers and mathematics pass over what is none of theirs. [What the answer is]"
        "(../graders.md#what-the-answer-is) has the rules.",
    ),
    "choice": Page(
        "Multiple choice",
        (choice.grade_choice,),
        "from heldout.scoring import Rubric, grade_choice, part\n\n"
        'score_fn = Rubric(part(grade_choice, name="correct", letters="ABCD"))\n\n\n'
        "# Where every sample has options of its own:\n"
        "def correct(answer, target, sample):\n"
        '    return grade_choice(answer, target, options=sample.metadata["options"])\n\n\n'
        "score_fn = Rubric(correct)",
        (Table(of_choice.CHOICES, columns=("answer", "target")),),
        note="Give the options' texts where you have them: then an answer may say the text, and `B "
        "cells` is not the letter B. [Options in another order]"
        "(../graders.md#options-in-another-order) shows how to shuffle them. In the "
        "examples, the options are "
        + ", ".join(
            f"{letter} {option}" for letter, option in zip("ABCD", of_choice.OPTIONS, strict=True)
        )
        + ".",
    ),
    "number": Page(
        "Numbers",
        (number.grade_number,),
        _correct(
            "grade_number",
            ", relative=1e-3",
            'assert grade_number("The answer is $29.00.", 29).value == 1.0',
        ),
        (Table(of_number.NUMBERS), Table(of_number.LAST_NUMBERS, "Where none is stated")),
    ),
    "text": Page(
        "Exact, normalised, included",
        (text.grade_exact, text.grade_match, text.grade_includes),
        _correct(
            "grade_match", "", 'assert grade_match("The  Eiffel Tower!", "eiffel tower").value'
        ),
        (
            Table(of_text.EXACT, "`grade_exact`"),
            Table(of_text.MATCH, "`grade_match`"),
            Table(of_text.INCLUDES, "`grade_includes`"),
        ),
    ),
    "f1": Page("Token F1", (text.grade_f1,), _correct("grade_f1"), (Table(of_text.F1),)),
    "rouge_l": Page(
        "ROUGE-L", (text.grade_rouge_l,), _correct("grade_rouge_l"), (Table(of_text.ROUGE_L),)
    ),
    "list": Page("Lists", (lists.grade_list,), _correct("grade_list"), (Table(of_lists.LISTS),)),
    "set": Page("Sets", (lists.grade_set,), _correct("grade_set"), (Table(of_lists.SETS),)),
    "spans": Page(
        "Spans, as DROP",
        (lists.grade_spans,),
        _correct("grade_spans"),
        (Table(of_lists.SPANS), Table(of_lists.EXACT_SPANS, "With `exact=True`")),
    ),
    "pattern": Page(
        "A pattern",
        (regex.grade_pattern,),
        "from heldout.scoring import Rubric, grade_pattern, part\n\n"
        'score_fn = Rubric(part(grade_pattern, name="polite", pattern=r"(?i)\\bplease\\b"))',
        (Table(of_regex.EXAMPLES, columns=("answer", "pattern")),),
        note=f"Patterns run on RE2, which is linear in the text: the extra `patterns` {INSTALL}.",
    ),
    "captured": Page(
        "What a pattern captures",
        (regex.grade_captured,),
        _correct("grade_captured", r', pattern=r"Answer: (\d+)"'),
        (Table(of_regex.CAPTURES, columns=("answer", "pattern, target")),),
        note=f"Patterns run on RE2, which is linear in the text: the extra `patterns` {INSTALL}.",
    ),
    "json": Page(
        "JSON of a schema",
        (json_schema.grade_json,),
        "from heldout.scoring import Rubric, grade_json, part\n\n"
        'schema = {"type": "object", "properties": {"city": {"type": "string"}}}\n'
        'score_fn = Rubric(part(grade_json, name="valid", schema=schema))',
        (Table(of_schema.EXAMPLES, columns=("answer", "schema")),),
        note=f"It needs the extra `schemas` {INSTALL}.",
    ),
    "formats": Page(
        "Formats",
        tuple(getattr(formats, name) for name in of_formats.EXAMPLES),
        "from heldout.scoring import Rubric, grade_number, has_boxed, has_length, has_tags, part\n"
        "\n"
        "score_fn = Rubric(\n"
        '    part(grade_number, name="correct"),\n'
        "    part(has_boxed, weight=0),  # tracked, and no part of the reward\n"
        '    part(has_length, weight=0, unit="words", at_most=200),\n'
        '    part(has_tags, weight=0, tags=["think", "answer"]),\n'
        ")",
        tuple(
            Table(examples, f"`{name}`", ("text" if name == "has_tags" else "answer", "options"))
            for name, examples in of_formats.EXAMPLES.items()
        ),
    ),
    "math": Page(
        "Mathematics",
        (math.grade_math, math.grade_math_sync),
        _correct("grade_math"),
        (
            Table(of_math.EXAMPLES),
            Table(of_math.LAST, "With `last=True`"),
        ),
        note=f"It needs the extra `math` {INSTALL}.",
    ),
    "python": Page(
        "Python programs",
        (code.grade_python,),
        "from heldout.scoring import Rubric, grade_python, human_eval_tests, part\n\n"
        'score_fn = Rubric(part(grade_python, name="correct"))  # ground_truth has the tests\n\n'
        "# Where a sample's metadata is a row of HumanEval:\n"
        'score_fn = Rubric(part(grade_python, name="correct", '
        "tests=human_eval_tests))",
        (Table(of_code.EXAMPLES, columns=("answer", "tests")),),
        note="[Code](../code.md) has the forms of tests, and what cannot score. It needs a "
        "[sandbox](../sandbox.md).",
    ),
    "calls": Page(
        "Tool calls",
        (tool_calls.grade_calls, tool_calls.score_calls),
        "from heldout.scoring import Rubric, grade_calls, part\n\n"
        'score_fn = Rubric(part(grade_calls, name="called"))',
        (
            Table(of_calls.GRADED, "`grade_calls`", ("calls", "target")),
            Table(of_calls.BFCL, "With BFCL's ground truth as the target", ("calls", "target")),
            Table(of_calls.FOLDED, "With `ignore_case=True`", ("calls", "target")),
            Table(
                of_calls.VALID, "Valid against the tool's parameters", ("arguments", "parameters")
            ),
            Table(of_calls.SAME, "Equal arguments", ("arguments", "reference")),
        ),
        note=f"Checking calls against schemas needs the extra `schemas` {INSTALL}.",
    ),
}


# --- Markdown -----------------------------------------------------------------------------------

_SHOWN = {"\n": "⏎", "\r": "␍", "\t": "⇥"}


def cell(text: str) -> str:
    """A text as code in a table's cell, every character of it as it is.

    Line ends and tabs have their signs, and so have spaces at the ends, which are not seen there.
    """
    text = "".join(_SHOWN.get(c, c if c.isprintable() else ascii(c)[1:-1]) for c in text)
    inner = text.strip(" ")
    if not inner:
        return "␣" * len(text) or "(nothing)"
    before, behind = text[: text.index(inner)], text[text.index(inner) + len(inner) :]
    text = "␣" * len(before) + inner + "␣" * len(behind)
    if re.search(r"\\\||\\$", text):  # markdown readers do not agree on these
        return f"<code>{_entities(text, kept=' ')}</code>"
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence, pad = "`" * (longest + 1), " " if text[0] == "`" or text[-1] == "`" else ""
    return f"{fence}{pad}{text}{pad}{fence}".replace("|", "\\|")


def _entities(text: str, kept: str) -> str:
    return "".join(c if c.isalnum() or c in kept else f"&#{ord(c)};" for c in text)


def _words(text: str) -> str:
    """A remark as it is, but for code in backticks, which is code."""
    code = re.split("(`[^`]+`)", text)
    return "".join(
        part.replace("|", "\\|") if place % 2 else _entities(part, kept=" .,;:'\"()/-+=?!{}…")
        for place, part in enumerate(code)
    )


def _value(value: Any, *, options: bool = False) -> str:
    if value is None or value == {}:
        return ""
    if options:
        return cell(", ".join(f"{key}={inner!r}" for key, inner in value.items()))
    if isinstance(value, str):
        return cell(value)
    if isinstance(value, tuple):
        return ", ".join(_value(part) for part in value)
    return cell(json.dumps(value, ensure_ascii=False, default=str))


def table(made: Table) -> str:
    what, target = made.columns
    rows = [[what, *([target] if target else []), "extracted", "verdict", "why"]]
    rows.append(["---"] * len(rows[0]))
    for example in made.examples:
        extracted = "–" if example.extracted is None else cell(example.extracted)
        wanted = [_value(example.target, options=target == "options")] if target else []
        verdict = f"{example.value:.3g}"
        rows.append([cell(example.answer), *wanted, extracted, verdict, _words(example.why)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _documented(function: Callable[..., Any]) -> str:
    """The function's name, parameters and docstring."""
    taken = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in taken:
            taken.append("*")
        plain = parameter.default is parameter.empty
        taken.append(name if plain else f"{name}={parameter.default!r}")
    said = [f"`{function.__name__}({', '.join(taken)})`"]
    for paragraph in (inspect.getdoc(function) or "").split("\n\n"):
        aligned = re.search(r"^\w+ {2,}", paragraph, re.MULTILINE)
        said.append(f"```text\n{paragraph}\n```" if aligned else _section(paragraph))
    return "\n\n".join(said)


def _section(paragraph: str) -> str:
    """A paragraph of a docstring; parameters and errors are a list."""
    head, _, body = paragraph.partition("\n")
    if head not in ("Args:", "Returns:", "Yields:", "Raises:"):
        return paragraph
    entries = re.sub(r"\n {6,}", " ", body).split("\n")
    if head in ("Returns:", "Yields:"):
        return f"{head} {' '.join(entry.strip() for entry in entries)}"
    named = (entry.strip().partition(": ") for entry in entries)
    bullet = "- " if head == "Args:" else "Raises "
    return "\n".join(f"{bullet}`{name}`: {rest}" for name, _, rest in named)


def page(made: Page) -> str:
    parts = [f"# {made.title}", MADE, *(_documented(function) for function in made.graders)]
    parts += [made.note] if made.note else []
    parts += [f"```python\n{made.usage}\n```", "## Examples"]
    parts.append(
        "`⏎` is a line end; `–` means that nothing was extracted. [All graders](../graders.md)"
    )
    for one in made.tables:
        parts += ([f"### {one.heading}"] if one.heading else []) + [table(one)]
    return "\n\n".join(parts) + "\n"


def write(folder: Path = FOLDER) -> None:
    folder.mkdir(exist_ok=True)
    for name, made in PAGES.items():
        (folder / f"{name}.md").write_text(page(made), encoding="utf-8")
    for stale in folder.glob("*.md"):
        if stale.stem not in PAGES:
            stale.unlink()


if __name__ == "__main__":
    write()
