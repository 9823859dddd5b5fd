"""What `grade_choice` makes of answers, with four options."""

from __future__ import annotations

from tests.scoring.examples import Example

OPTIONS = ("London", "Oslo", "Paris", "Rome")

CHOICES = (
    Example("**Answer:** C", "C", "C", 1.0, "markdown around the word"),
    Example("Answer: (c)", "C", "C", 1.0, "parentheses, lower case"),
    Example("C) Paris", "C", "C", 1.0, "letter and text"),
    Example("Answer: Paris", "C", "C", 1.0, "the option's text"),
    Example(r"$\boxed{\text{C}}$", "C", "C", 1.0, "a box"),
    Example("Answer: A\nWait.\nAnswer: C", "C", "C", 1.0, "the last statement counts"),
    Example("A and B do not fit.\n\n**C**", "C", "C", 1.0, "a letter alone at the end"),
    Example("The correct option is C, since B fails.", "C", "C", 1.0, "called the option"),
    Example("C is correct. A is wrong.", "C", "C", 1.0, "called correct"),
    Example("Answer: Ｃ", "C", "C", 1.0, "full-width"),
    Example("Ответ: С", "C", "C", 1.0, "a Cyrillic look-alike"),
    Example("الإجابة: ج", "C", "C", 1.0, "the third Arabic option letter"),
    Example("उत्तर: (ग)", "C", "C", 1.0, "the third Devanagari option letter"),
    Example("정답은 ③입니다", "C", "C", 1.0, "a circled number"),
    Example("Answer: A dog", "A", None, 0.0, "an article is no letter"),
    Example("Answer: C++", "C", None, 0.0, "part of a name"),
    Example("Answer: B or C", "C", "B, C", 0.0, "two letters do not decide"),
    Example("Answer: none of these", "A", None, 0.0, "no option"),
    Example("Both A and B look fine, C might too", "C", None, 0.0, "stray letters never count"),
    Example("A) London\nB) Oslo\nC) Paris\nD) Rome", "D", None, 0.0, "options listed, none chosen"),
    Example("A is wrong", "A", None, 0.0, "a remark about an option"),
    Example("Answer: E", "D", None, 0.0, "not an option"),
    Example("<think>It is C, answer: C", "C", None, 0.0, "reasoning that never ends"),
)
