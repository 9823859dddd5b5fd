"""What the list graders make of answers; a table each."""

from __future__ import annotations

from tests.scoring.examples import Example

LISTS = (
    Example("Answer: a1, b2 and c3", ["A1", "b2", "c3"], "a1; b2; c3", 1.0, "commas and `and`"),
    Example('["x", "y"]', ["x", "y"], "x; y", 1.0, "JSON"),
    Example('```json\n["x", "y"]\n```', ["x", "y"], "x; y", 1.0, "JSON in a code block"),
    Example("Answer:\n1. x\n2. y", ["x", "y"], "x; y", 1.0, "lines"),
    Example("These two:\n- x\n- y\nEnjoy!", ["x", "y"], "x; y", 1.0, "what is no item aside"),
    Example(
        *(r"\boxed{x}, \boxed{y}, and \boxed{z}", ["x", "y", "z"], "x; y; z"),
        *(1.0, "boxes that are joined"),
    ),
    Example("1,2,3", [1, 2, 3], "1; 2; 3", 1.0, "numbers"),
    Example("100,200,300", [100, 200, 300], "100; 200; 300", 1.0, "or one number, if that suits"),
    Example("1,000, 2.50", [1000, 2.5], "1,000; 2.50", 1.0, "numbers by value"),
    Example(
        *("Queen, Simon and Garfunkel", ["Queen", "Simon and Garfunkel"]),
        *("Queen; Simon and Garfunkel", 1.0, "an `and` may be part of an item"),
    ),
    Example("y, x", ["x", "y"], "y; x", 0.0, "order counts"),
    Example("<think>x, y", ["x", "y"], None, 0.0, "reasoning that never ends"),
)

SETS = (
    Example("y, x, x", ["x", "y"], "y; x; x", 1.0, "order and number do not count"),
    Example("1 and 2 and 3", [1, 2, 3], "1; 2; 3", 1.0, "many an `and`"),
    Example("x", ["x", "y"], "x", 0.0, "one is missing"),
    Example("[]", [], "", 1.0, "no items"),
    Example("...", [], "...", 0.0, "is no list"),
    Example("x, y, q", ["x", "y"], "x; y; q", 0.0, "one is too many"),
)

SPANS = (
    Example("Smith; 5 yards", ["5 yards", "Smith"], "Smith; 5 yards", 1.0, "in any order"),
    Example("John; Smith", ["John Smith"], "John; Smith", 1 / 3, "a span is aligned once"),
    Example("4 yards", ["5 yards"], "4 yards", 0.0, "another number is another answer"),
    Example("Smith", [["Jones", "Brown"], ["Smith"]], "Smith", 1.0, "several lists are right"),
)

EXACT_SPANS = (
    Example("Smith; 5 yards", ["5 yards", "Smith"], "Smith; 5 yards", 1.0, "in any order"),
    Example("Mr Smith; 5 yards", ["5 yards", "Smith"], "Mr Smith; 5 yards", 0.0, "nearly"),
    Example("Smith; Smith", ["Smith"], "Smith; Smith", 0.0, "and as many"),
)
