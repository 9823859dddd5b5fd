r"""What `math_equal` makes of answers; the targets are gold expressions."""

from __future__ import annotations

from tests.scoring.examples import Example

EXAMPLES: tuple[Example, ...] = (
    # Where the answer is.
    Example(r"So it is \boxed{\frac{3}{4}}.", "3/4", r"\frac{3}{4}", 1.0, "in a box"),
    Example(r"\boxed{4}. Wait, that is odd. \boxed{6}", "6", "6", 1.0, "the last box counts"),
    Example(r"\boxed{4}. Wait, that is odd. \boxed{6}", "4", "6", 0.0, "and no other"),
    Example(r"\boxed{4}. Wait, that is odd. \boxed{6}", "4,6", "6", 0.0, "nor all of them"),
    Example(r"$\boxed{1}$ and $\boxed{2}$", r"\{1,2\}", "1, 2", 1.0, "joined boxes are one answer"),
    Example(r"\boxed{\boxed{5}}", "5", "5", 1.0, "a box in a box"),
    Example(r"\boxed{\{1, 2\}}", "1, 2", r"\{1, 2\}", 1.0, "escaped braces do not close it"),
    Example(r"It is \boxed 5", "5", "5", 1.0, "a box without braces"),
    Example(r"\boxed{12", "12", None, 0.0, "a box that never closes is no answer"),
    Example(r"First \boxed{12}, no, \boxed{1", "12", None, 0.0, "nor is the one before it"),
    Example(r"First $x=2$, then $x=3$.", "3", "x=3", 1.0, "without a box, what comes last"),
    Example("The final answer is **3/4**.", "3/4", "3/4.", 1.0, "markdown around it"),
    Example("**Answer:** -3", "-3", "-3", 1.0, "the minus sign is kept"),
    Example("**Answer:** -3", "3", "-3", 0.0, "the minus sign is kept"),
    Example("(1,2)", "(1,2)", "(1,2)", 1.0, "nothing but an expression"),
    Example("I do not know.", "4", None, 0.0, "no answer"),
    Example("", "4", None, 0.0, "no answer"),
    Example(r"\boxed{???}", "4", "???", 0.0, "not mathematics"),
    # Numbers.
    Example("The answer is 0.5", "1/2", "0.5", 1.0, "a decimal and a fraction"),
    Example(r"\boxed{0.333333}", "1/3", "0.333333", 1.0, "to six places"),
    Example(r"\boxed{0.33}", "1/3", "0.33", 0.0, "and not to two"),
    Example(r"\boxed{0}", "1e-7", "0", 0.0, "a tiny number is not nothing"),
    Example(r"\boxed{10^{-7}}", "1e-7", "10^{-7}", 1.0, "scientific notation"),
    Example("1e3", "1000", "1000", 1.0, "scientific notation"),
    Example(r"\boxed{1,234}", "1234", "1,234", 1.0, "thousands"),
    Example("It costs $29.00", "29", "29.00", 1.0, "money"),
    Example("The answer is 1 1/2.", "1.5", r"1\frac{1}{2}", 1.0, "a mixed number"),
    Example("\u22123", "-3", "-3", 1.0, "a typographic minus sign"),
    Example(r"\boxed{5.}", "5", "5", 1.0, "a full stop in the box"),
    Example(r"\boxed{50\%}", "0.5", r"50\%", 1.0, "percent"),
    Example(r"$\boxed{50}\%$", "0.5", r"50\%", 1.0, "percent behind the box"),
    Example(r"\boxed{50}", r"50\%", "50", 1.0, "percent left out"),
    Example(r"\boxed{5\text{ cm}}", "5", "5", 1.0, "units are not compared"),
    # Expressions.
    Example(r"\boxed{(x-1)(x+1)}", "x^2-1", "(x-1)(x+1)", 1.0, "another form"),
    Example(r"\boxed{\frac{1}{\sqrt 2}}", r"\sqrt{2}/2", r"\frac{1}{\sqrt{2}}", 1.0, "roots"),
    Example(r"\boxed{y}", "x", "y", 0.0, "another variable"),
    Example("$x=5$", "5", "x=5", 1.0, "the variable named"),
    Example("$5$", "x=5", "5", 1.0, "the variable left out"),
    Example(r"\boxed{3\pm\sqrt{2}}", r"\{3-\sqrt2, 3+\sqrt2\}", r"3\pm\sqrt{2}", 1.0, "plus-minus"),
    Example(r"\boxed{2,1}", r"\{1,2\}", "2,1", 1.0, "a set has no order"),
    Example(r"\boxed{(2,1)}", "(1,2)", "(2,1)", 0.0, "a pair has"),
    Example(r"\boxed{[1,2]}", "(1,2)", "[1,2]", 0.0, "closed is not open"),
    Example(r"\boxed{[3,\infty)}", r"x \ge 3", r"[3,\infty)", 1.0, "a relation as an interval"),
    Example(r"\boxed{x \ge 3}", r"[3,\infty)", r"x \ge 3", 0.0, "but not the other way round"),
    Example(
        r"\boxed{\begin{bmatrix}1&2\\3&4\end{bmatrix}}",
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
        r"\begin{bmatrix}1&2\\3&4\end{bmatrix}",
        1.0,
        "matrices",
    ),
    Example(r"\boxed{\text{Monday}}", r"\text{Monday}", r"\text{Monday}", 1.0, "a word"),
)
