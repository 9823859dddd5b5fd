"""Time graders on answers of 1 KB, schema checks, rubrics, and math equivalence in its pool.

CPU time an item is the best of several rounds over answers that all differ, of each kind of answer;
the slowest kind counts. Math equivalence is in math_pool.py.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from common import HERE, child, emit, options, say

ANSWERS, ROUNDS = 200, 9
REASONING = "We look at the terms one after the other, and see that they add up to more. "


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--case", choices=["graders"])
    chosen = parser.parse_args()
    if chosen.case is not None:
        print(json.dumps(graders(2 if chosen.quick else ROUNDS)))
    else:
        report(["--quick"] if chosen.quick else [])


def report(quick: list[str]) -> None:
    say("graders")
    times = child(sys.executable, __file__, "--case", "graders", *quick)
    for name, value in times.items():
        target = 60.0 if name.startswith(("grade_choice", "grade_number", *TEXTS)) else None
        if name.startswith("a schema check"):
            target = 5.0
        emit(name, value, "µs an item", target=target)
    for backend in ("asyncio", "trio"):
        say(f"math equivalence in a pool, {backend}")
        found = child(sys.executable, HERE / "math_pool.py", "--case", backend, *quick)
        if backend == "asyncio":
            emit("math: plain loops, all cores", found["loops"] * 1e3, "ms an item")
        emit(f"math: the pool, {backend}", found["pool"] * 1e3, "ms an item")
        emit(
            f"math: the pool's time over the plain loops', {backend} (90% of their throughput)",
            found["pool"] / found["loops"],
            "times",
            target=1 / 0.9,
        )
        wait = f"math: longest the {backend} loop was blocked"
        emit(wait, found["blocked"] * 1e3, "ms", target=20)
        emit(f"{wait}, with plain loops in place of the pool", found["idle"] * 1e3, "ms")


# --- Graders --------------------------------------------------------------------------------------

TEXTS = ("grade_exact", "grade_match", "grade_includes", "grade_f1", "grade_rouge_l")
ENDS: dict[str, dict[str, str]] = {
    "grade_choice": {
        "**Answer:** C": "\n\n**Answer:** C",
        "in a sentence": "\nSo the correct answer is (C), since {n} is odd.",
        "a box": "\nThus \\boxed{{\\text{{C}}}}.",
        "other words": "\nالإجابة: C",
        "none": " That is all there is to say about it.",
    },
    "grade_number": {
        "in a sentence": "\nThe answer is $1,{n:03d}.50.",
        "a box": "\nThus \\boxed{{-{n}.5e-3}}.",
        "hashes": "\n#### {n}",
        "a fraction": "\n**Answer:** {n} 1/2 km",
        "none": " That is all there is to say about it.",
    },
    "text": {
        "Answer:": "\nAnswer: The river Thames",
        "in a sentence": "\nThe final answer is **the River Thames**.",
        "a tag": "\n<answer>the river thames</answer>",
        "none": " It must be the river Thames.",
    },
}


def kilobyte(end: str, n: int) -> str:
    """About 1 KB, different for each number."""
    end = end.format(n=n)
    start = f"This is case number {n}. "
    return (start + REASONING * 14)[: 1000 - len(end)] + end


def graders(rounds: int) -> dict[str, float]:
    from heldout import scoring
    from heldout.scoring.answers import answer_text
    from heldout.scoring.json_schema import compiled
    from heldout.scoring.tool_calls import read_calls
    from heldout.types import Completion, Message, Sample, ToolCall, ToolSpec, Trajectory

    times: dict[str, float] = {}

    def slowest(name: str, kinds: dict[str, str], call: Callable[[str], Any], label: str) -> None:
        found = {}
        for kind, end in kinds.items():
            answers = [kilobyte(end, n) for n in range(ANSWERS)]
            found[kind] = best(call, answers, rounds)
        *_, worst = ordered = sorted(found, key=lambda kind: found[kind])
        middle = ordered[(len(ordered) - 1) // 2]
        times[f"{name}: {label}, the slowest of {len(kinds)} kinds ({worst!r})"] = found[worst]
        times[f"{name}: the middle one of them ({middle!r})"] = found[middle]

    slowest(
        "grade_choice",
        ENDS["grade_choice"],
        lambda answer: scoring.grade_choice(answer, "C"),
        "1 KB",
    )
    slowest(
        "grade_number",
        ENDS["grade_number"],
        lambda answer: scoring.grade_number(answer, 72),
        "1 KB",
    )
    for name in TEXTS:
        grade = getattr(scoring, name)
        slowest(name, ENDS["text"], lambda a, grade=grade: grade(a, "river Thames"), "1 KB")
    pattern = r"(?i)river (\w+)"
    slowest(
        "grade_captured",
        ENDS["text"],
        lambda answer: scoring.grade_captured(answer, "Thames", pattern=pattern),
        "1 KB",
    )

    properties = {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}}
    shape = {"type": "object", "properties": properties, "required": ["city", "days"]}
    schema = compiled(shape)
    values = [{"city": f"Town {n}", "days": n + 1} for n in range(ANSWERS)]
    times["a schema check, compiled once"] = best(schema.accepts, values, rounds)
    times["the same by jsonschema-rs itself"] = best(raw_validator(shape), values, rounds)
    written = [json.dumps(value | {"note": REASONING * 12}) for value in values]
    times["grade_json: 1 KB of JSON, read and checked"] = best(
        lambda answer: scoring.grade_json(answer, schema=schema), written, rounds
    )
    tools = (ToolSpec("weather", "", shape), ToolSpec("time", "", {"type": "object"}))
    completions = [
        Completion(
            Message("assistant", "", tool_calls=(ToolCall(str(n), "weather", json.dumps(value)),)),
            "tool_calls",
        )
        for n, value in enumerate(values)
    ]
    times["read_calls: a response with one call"] = best(
        lambda completion: read_calls(completion, tools), completions, rounds
    )

    def long(answer: str) -> bool:
        return len(answer) > 900

    rubric = scoring.Rubric(scoring.part(long, name="long"))
    sample = Sample("s", {"question": "which?"}, "C")
    answers = [kilobyte(ENDS["grade_choice"]["a box"], n) for n in range(ANSWERS)]
    trajectories = [
        Trajectory((Message("user", "a question"), Message("assistant", answer)))
        for answer in answers
    ]
    whole = best(lambda trajectory: rubric(trajectory, sample), trajectories, rounds)
    alone = best(lambda answer: long(answer_text(answer) or ""), answers, rounds)
    times["a Rubric of one plain part, beyond the function and its answer"] = whole - alone
    return times


def raw_validator(shape: dict[str, Any]) -> Callable[[Any], Any]:
    import jsonschema_rs

    valid: Callable[[Any], Any] = jsonschema_rs.validator_for(shape).is_valid
    return valid


def best(call: Callable[[Any], Any], values: Sequence[Any], rounds: int) -> float:
    """Microseconds of CPU a call, in the best round: caches are full then, and nobody disturbs."""
    found = []
    for _ in range(rounds):
        started = time.process_time()
        for value in values:
            call(value)
        found.append((time.process_time() - started) / len(values))
    return min(found) * 1e6


if __name__ == "__main__":
    main()
