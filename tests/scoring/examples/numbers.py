"""What `grade_number` makes of answers, and what it does where asked for the last number."""

from __future__ import annotations

from tests.scoring.examples import Example

NUMBERS = (
    Example("The answer is $29.00.", 29, "$29.00", 1.0, "currency, and zeros at the end"),
    Example("Answer: -42", 42, "-42", 0.0, "the sign counts"),
    Example("Answer: −42", -42, "−42", 1.0, "a typographic minus"),
    Example("Answer: minus 42", -42, "minus 42", 1.0, "a minus in words"),
    Example("Answer: -$5", -5, "-$5", 1.0, "sign before currency"),
    Example("Answer: 1,234,567", 1234567, "1,234,567", 1.0, "thousands"),
    Example("Answer: 12,34,567", 1234567, "12,34,567", 1.0, "lakhs"),
    Example("Answer: 1.234,56", 1234.56, "1.234,56", 1.0, "a decimal comma after points"),
    Example("Answer: 1'234.5", 1234.5, "1'234.5", 1.0, "Swiss thousands"),
    Example("Answer: 0,5", 0.5, "0,5", 1.0, "can only be a decimal comma"),
    Example("Answer: 1.234", 1234, "1.234", 0.0, "the English way unless told otherwise"),
    Example("Answer: 50%", 50, "50%", 1.0, "percent as written"),
    Example("Answer: 50%", 0.5, "50%", 1.0, "percent as hundredths"),
    Example("Answer: 5 km/h", 5, "5", 1.0, "a unit"),
    Example("Answer: 3 million", 3_000_000, "3 million", 1.0, "a scale in words"),
    Example("Answer: 3/4", 0.75, "3/4", 1.0, "a fraction"),
    Example(r"\boxed{-\frac{3}{4}}", "-3/4", r"-\frac{3}{4}", 1.0, "a LaTeX fraction"),
    Example("Answer: 1 1/2", 1.5, "1 1/2", 1.0, "a mixed fraction"),
    Example("Answer: 2½", 2.5, "2½", 1.0, "a vulgar fraction"),
    Example("Answer: 1.2 × 10^3", 1200, "1.2 × 10^3", 1.0, "scientific notation"),
    Example("Answer: 6e-3", 0.006, "6e-3", 1.0, "scientific notation"),
    Example("Answer: x = 3 + 4 = 7", 7, "7", 1.0, "what stands after the last ="),
    Example("Answer: 18 (3 × 6)", 18, "18", 1.0, "an explanation behind it"),
    Example("Answer: 5 or 7", 5, None, 0.0, "two numbers do not decide"),
    Example("Answer: 5-7", 5, None, 0.0, "a range"),
    Example(r"Answer: 2\sqrt{3}", 2, None, 0.0, "an expression"),
    Example("Answer: 3:30", 30, None, 0.0, "a time"),
    Example("Answer: 12345678901234567890", 12345678901234567891, "12345678901234567890", 0.0),
    Example("There are 12.", 12, "12", 1.0, "the only number"),
    Example("3 boxes of 4 are 12.", 12, None, 0.0, "several numbers, none stated"),
    Example("<think>12</think>Answer: 13", 13, "13", 1.0, "reasoning is not the answer"),
    Example("<think>12", 12, None, 0.0, "reasoning that never ends"),
)

LAST_NUMBERS = (
    Example("3 boxes of 4 are 12.", 12, "12", 1.0, "the last, not the first"),
    Example("It falls from 10 to -5 degrees", -5, "-5", 1.0, "with its sign"),
    Example("That is 10-5", -5, "5", 0.0, "an operator is no sign"),
    Example("It is 7.\n2. That is all", 7, "7", 1.0, "the number of a list item is none"),
    Example("Answer: 4, found in 2 steps", 4, "4", 1.0, "a statement goes before it"),
)
