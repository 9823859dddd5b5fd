"""What the text graders make of answers; a table each."""

from __future__ import annotations

from tests.scoring.examples import Example

EXACT = (
    Example("Paris", "Paris", "Paris", 1.0, ""),
    Example("**Answer:** Paris", "Paris", "Paris", 1.0, "what is stated"),
    Example("paris", "Paris", "paris", 0.0, "case counts"),
    Example("Rome", ["Paris", "Rome"], "Rome", 1.0, "several are right"),
    Example("<think>Paris", "Paris", None, 0.0, "reasoning that never ends"),
)

MATCH = (
    Example(
        "The  Eiffel Tower!", "eiffel tower", "The  Eiffel Tower!", 1.0, "case, article, marks"
    ),
    Example("1,000.0", "1000", "1,000.0", 1.0, "the same number"),
    Example("-5", "5", "-5", 0.0, "the sign is no punctuation"),
    Example("3.5", "35", "3.5", 0.0, "nor is the point"),
    Example("C++", "C", "C++", 0.0, "nor is this"),
    Example("+", "-", "+", 0.0, "punctuation alone is not nothing"),
    Example("Ｐａｒｉｓ", "paris", "Ｐａｒｉｓ", 1.0, "full-width"),
)

INCLUDES = (
    Example("The Eiffel Tower, Paris", "eiffel tower", "The Eiffel Tower, Paris", 1.0, "anywhere"),
    Example("I know", "no", "I know", 0.0, "whole words"),
    Example("15 apples", "5", "15 apples", 0.0, "whole numbers"),
    Example("It costs 1,000 now", "1000", "It costs 1,000 now", 1.0, "the same number"),
)

F1 = (
    Example("the cat sat", "the cat sat down", "the cat sat", 0.8, "2 of 2 and 2 of 3 words"),
    Example("cat cat cat", "cat", "cat cat cat", 0.5, "a word counts as often as in both"),
    Example("dog", "cat", "dog", 0.0, ""),
    Example("the dog", ["a cat", "a dog"], "the dog", 1.0, "the best target counts"),
)

ROUGE_L = (
    Example("the cat sat on the mat", "the cat is on the mat", "the cat sat on the mat", 5 / 6, ""),
    Example("mat the on", "on the mat", "mat the on", 1 / 3, "order counts"),
)

LISTS = (
    Example("Answer: a1, b2 and c3", ["A1", "b2", "c3"], "a1; b2; c3", 1.0, "commas and `and`"),
    Example('["x", "y"]', ["x", "y"], "x; y", 1.0, "JSON"),
    Example("Answer:\n1. x\n2. y", ["x", "y"], "x; y", 1.0, "lines"),
    Example("y, x", ["x", "y"], "y; x", 0.0, "order counts"),
)

SETS = (
    Example("y, x, x", ["x", "y"], "y; x; x", 1.0, "order and number do not count"),
    Example("x", ["x", "y"], "x", 0.0, "one is missing"),
)

SPANS = (
    Example("Smith; 5 yards", ["5 yards", "Smith"], "Smith; 5 yards", 1.0, "in any order"),
    Example("John; Smith", ["John Smith"], "John; Smith", 1 / 3, "a span is aligned once"),
    Example("4 yards", ["5 yards"], "4 yards", 0.0, "another number is another answer"),
)
