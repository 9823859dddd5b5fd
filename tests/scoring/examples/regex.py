"""Examples of the regex graders: the target is the pattern, or (pattern, what it is to capture)."""

from __future__ import annotations

from tests.scoring.examples import Example

EXAMPLES = (
    Example("It is 42.", r"\d+", "42", 1.0, "found"),
    Example("At first 41, then 42.", r"\d+", "42", 1.0, "the last match counts"),
    Example(
        "The answer is (C).", r"answer is \(([A-D])\)", "C", 1.0, "the first group is what is seen"
    ),
    Example("THE ANSWER IS C", r"answer is ([A-D])", None, 0.0, "case counts"),
    Example(
        "THE ANSWER IS C", r"(?i)answer is ([a-d])", "C", 1.0, "unless the pattern says otherwise"
    ),
    Example("42\nor so", r"^\d+$", None, 0.0, "$ is the very end"),
    Example("42\nor so", r"(?m)^\d+$", "42", 1.0, "with (?m), the end of a line"),
    Example("-7", r"-?\d+", "-7", 1.0, "the sign is kept if the pattern has one"),
    Example("naïve", r"\w+", "ve", 1.0, r"\w is ASCII"),
    Example("naïve", r"\p{L}+", "naïve", 1.0, r"\p{L} is any letter"),
    Example("<think>41</think>", r"\d+", None, 0.0, "reasoning is not the answer"),
    Example("", r".*", None, 0.0, "no answer matches nothing"),
    Example(
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", r"(a+)+$", None, 0.0, "takes years elsewhere"
    ),
)
"""Of `grade_pattern`."""

CAPTURES = (
    Example("Answer: 41\nAnswer: 42", (r"Answer: (\d+)", "42"), "42", 1.0, "the last match counts"),
    Example("Answer: 42\nAnswer: 41", (r"Answer: (\d+)", "42"), "41", 0.0, "and no other"),
    Example("Answer: 42.0", (r"Answer: ([\d.]+)", "42"), "42.0", 0.0, "compared as text"),
    Example("Answer: 42", (r"Answer: (\d+)", 42), "42", 1.0, "a number is compared as text, too"),
    Example("I do not know", (r"Answer: (\d+)", "42"), None, 0.0, "no match"),
)
"""Of `grade_captured`."""
