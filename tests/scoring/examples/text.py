"""What the text graders make of answers; a table each."""

from __future__ import annotations

from tests.scoring.examples import Example

EXACT = (
    Example("Paris", "Paris", "Paris", 1.0, ""),
    Example("**Answer:** Paris", "Paris", "Paris", 1.0, "what is stated"),
    Example("Answer: Paris.", "Paris.", "Paris", 1.0, "its full stop aside"),
    Example("paris", "Paris", "paris", 0.0, "case counts"),
    Example("Rome", ["Paris", "Rome"], "Rome", 1.0, "several are right"),
    Example("Answer: 7", 7, "7", 1.0, "a whole number is its digits"),
    Example("Answer: Rome. No! Answer: Paris", "Rome", "Paris", 0.0, "the last statement"),
    Example("<think>Paris", "Paris", None, 0.0, "reasoning that never ends"),
)

MATCH = (
    Example("It is in Paris.", "paris", "It is in Paris.", 1.0, "at the end of the answer"),
    Example("It is not Paris.", "Paris", "It is not Paris.", 0.0, "denied"),
    Example("It can’t be Paris", "Paris", "It can’t be Paris", 0.0, "denied"),
    Example("The answer is not Paris.", "Paris", "The answer is not Paris.", 0.0, "denied"),
    Example("It is not Oslo. Paris!", "Paris", "It is not Oslo. Paris!", 1.0, "another one is"),
    Example("It is Oslo or Paris.", "Paris", "It is Oslo or Paris.", 0.0, "one of two"),
    Example("Rome, Oslo, Paris", "Paris", "Rome, Oslo, Paris", 0.0, "the last of several"),
    Example("- Rome\n- Oslo\n- Paris", "Paris", "- Rome\n- Oslo\n- Paris", 0.0, "in a list, too"),
    Example("It is in Paris, France.", "France", "It is in Paris, France.", 1.0, "no list"),
    Example(
        "The answer is Oslo. Wait, no: it is Paris.", "Paris", "it is Paris", 1.0, "taken back"
    ),
    Example("The answer is Paris. Wait, no.", "Paris", None, 0.0, "taken back"),
    Example(r"\boxed{Oslo} or \boxed{Paris}", "Paris", "Oslo or Paris", 0.0, "one of two"),
    Example("The answer is Oslo. The answer is Paris.", "Paris", None, 0.0, "two answers"),
    Example("I don't know. <!-- Paris -->", "Paris", "I don't know.", 0.0, "a comment is not seen"),
    Example(
        "It is\u00a0in\u200b Par\u00adis.", "paris", "It is in Paris.", 1.0, "hidden characters"
    ),
    Example("Paris is the capital.", "paris", "Paris is the capital.", 0.0, "and not before it"),
    Example("So: 15", "5", "So: 15", 0.0, "whole words and numbers"),
    Example(
        "The  Eiffel Tower!", "eiffel tower", "The  Eiffel Tower!", 1.0, "case, article, marks"
    ),
    Example("1,000.0", "1000", "1,000.0", 1.0, "the same number"),
    Example("$29.00", "29", "$29.00", 1.0, "the same number, of money"),
    Example("2½", "2.5", "2½", 1.0, "the same number, as a fraction"),
    Example("-5", "5", "-5", 0.0, "the sign is no punctuation"),
    Example("3.5", "35", "3.5", 0.0, "nor is the point"),
    Example("10²", "102", "10²", 0.0, "nor is a power a digit"),
    Example("C++", "C", "C++", 0.0, "nor is this"),
    Example("the U.S. Navy", "US Navy", "the U.S. Navy", 1.0, "initials"),
    Example("well-known", "well known", "well-known", 1.0, "a hyphen is a space"),
    Example("+", "-", "+", 0.0, "punctuation alone is not nothing"),
    Example("x = -1", "x = 1", "x = -1", 0.0, "signs and operators are words"),
    Example("x=-1", "x = -1", "x=-1", 1.0, "whatever the spaces"),
    Example("x<y", "x>y", "x<y", 0.0, "comparisons"),
    Example("A ∪ B", "A ∩ B", "A ∪ B", 0.0, "symbols"),
    Example("Cl-", "Cl", "Cl-", 0.0, "a charge, a grade, a blood group"),
    Example("B♭", "B", "B♭", 0.0, "a note"),
    Example("m²", "m2", "m²", 0.0, "a power of a letter"),
    Example("Paris - France", "Paris, France", "Paris - France", 1.0, "a dash is punctuation"),
    Example("she'll", "shell", "she'll", 0.0, "a contraction that would be another word"),
    Example("Answer: 5 percent", "5%", "5 percent", 1.0, "percent in words"),
    Example("Ｐａｒｉｓ", "paris", "Ｐａｒｉｓ", 1.0, "full-width"),
    Example("के", "की", "के", 0.0, "vowel signs are no punctuation"),
)

INCLUDES = (
    Example("The Eiffel Tower, Paris", "eiffel tower", "The Eiffel Tower, Paris", 1.0, "anywhere"),
    Example("It is not Paris", "Paris", "It is not Paris", 1.0, "whatever is said of it"),
    Example("I know", "no", "I know", 0.0, "whole words"),
    Example("15 apples", "5", "15 apples", 0.0, "whole numbers"),
    Example("-5 degrees", "5", "-5 degrees", 0.0, "with their sign"),
    Example("It costs 1,000 now", "1000", "It costs 1,000 now", 1.0, "the same number"),
    Example("x=-3", "3", "x=-3", 0.0, "wherever that stands"),
    Example("at 3:30", "3", "at 3:30", 0.0, "a time is one thing"),
    Example("15歳", "5歳", "15歳", 0.0, "whole numbers in every script"),
    Example("答案是12", "12", "答案是12", 1.0, "with no spaces around them"),
    Example("首都是巴黎市", "巴黎", "首都是巴黎市", 1.0, "where no spaces are written, any part"),
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
