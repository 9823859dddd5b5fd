r"""Examples of the format checks, by check; the target is its options."""

from __future__ import annotations

from typing import Any

from tests.scoring.examples import Example

_NONE: dict[str, Any] = {}
_TAGS = {"tags": ("think", "answer"), "nothing_else": True}

IS_JSON = (
    Example(' {"a": [1, 2]}\n', _NONE, '{"a": [1, 2]}', 1.0),
    Example("12", _NONE, "12", 1.0, "a number is JSON"),
    Example("12", {"kind": "object"}, "12", 0.0, "but not an object"),
    Example("[]", {"kind": "list"}, "[]", 1.0),
    Example('```json\n{"a": 1}\n```', _NONE, None, 0.0, "the whole answer is meant"),
    Example('{"a": 1} {"b": 2}', _NONE, None, 0.0, "two values"),
    Example("Infinity", _NONE, None, 0.0),
    Example("1e999", _NONE, None, 0.0, "larger than any float"),
    Example("", _NONE, None, 0.0, "no answer"),
)

HAS_CODE_BLOCK = (
    Example("```python\nprint(1)\n```", {"language": "python"}, "print(1)", 1.0),
    Example("```Python\nprint(1)\n```", {"language": "python"}, "print(1)", 1.0, "in any case"),
    Example("```js\n1\n```", {"language": "python"}, None, 0.0, "another language"),
    Example("```\na\n```\n~~~\nb\n~~~", _NONE, "b", 1.0, "the last one is seen"),
    Example("````\n```\nx\n```\n````", _NONE, "```\nx\n```", 1.0, "a block in a block"),
    Example("```python\nprint(1", _NONE, None, 0.0, "never closes"),
    Example("```\n\n```", _NONE, None, 0.0, "empty"),
    Example("1. So:\n   ```\n   a\n   ```", _NONE, "   a", 1.0, "below a list item"),
    Example("<think>```\na\n```</think>b", _NONE, None, 0.0, "reasoning is not the answer"),
    Example("use ```x``` or `y`", _NONE, None, 0.0, "code in a line is no block"),
)

HAS_BOXED = (
    Example(r"so $\boxed{42}$", _NONE, "42", 1.0),
    Example(r"\boxed{\frac{1}{2}}", _NONE, r"\frac{1}{2}", 1.0, "nested"),
    Example(r"\boxed{1} or rather \boxed{2}", _NONE, "2", 1.0, "the last one is seen"),
    Example(r"\boxed{\quad}", _NONE, None, 0.0, "shows nothing"),
    Example("\\boxed{\u200b}", _NONE, None, 0.0, "nor does what has no width"),
    Example(r"\boxed{1} or rather \boxed{2", _NONE, None, 0.0, "the last one is cut off"),
    Example(r"\boxed{\{1, 2\}}", _NONE, r"\{1, 2\}", 1.0, "escaped braces are text"),
    Example(r"\boxed 7", _NONE, "7", 1.0, "without braces"),
    Example(r"\boxed{ }", _NONE, None, 0.0, "empty"),
    Example(r"\boxed{1}, not \boxed{}", _NONE, None, 0.0, "the last one is empty"),
    Example("boxed{42}", _NONE, None, 0.0, "without the backslash"),
    Example("42", _NONE, None, 0.0),
)

IS_ONE_LINE = (
    Example("\n42\n", _NONE, "42", 1.0, "blank space around does not count"),
    Example("4\n2", _NONE, "4\n2", 0.0),
    Example("4\u20282", _NONE, "4\u20282", 0.0, "a line separator separates lines"),
    Example("<think>4\n2</think>\n6", _NONE, "6", 1.0, "reasoning does not count"),
    Example("\n", _NONE, None, 0.0, "no answer"),
)

HAS_LENGTH = (
    Example("four words are here", {"unit": "words", "at_most": 4}, "4", 1.0),
    Example("five words are now here", {"unit": "words", "at_most": 4}, "5", 0.0),
    Example(" abc ", {"at_least": 3, "at_most": 3}, "3", 1.0, "blank space around does not count"),
    Example("a\n\nb", {"unit": "lines", "at_least": 2, "at_most": 2}, "2", 1.0, "nor blank lines"),
    Example("<think>short", {"at_most": 10}, None, 0.0, "nor is reasoning that never ends"),
    Example("", {"at_most": 10}, None, 0.0, "an empty answer is not a short one"),
)

HAS_TAGS = (
    Example("<think>hm</think> <answer>4</answer>", _TAGS, "4", 1.0),
    Example("<think>hm</think><answer>4", _TAGS, None, 0.0, "never closes"),
    Example("<answer>4</answer><think>hm</think>", _TAGS, None, 0.0, "in the wrong order"),
    Example("<think>hm<answer>4</answer></think>", _TAGS, None, 0.0, "one inside the other"),
    Example("<think></think><answer>4</answer><answer>5</answer>", _TAGS, None, 0.0, "twice"),
    Example("<think>a</think> so <answer>4</answer>", _TAGS, "4", 0.0, "text outside"),
    Example("</answer>4<answer>", {"tags": ("answer",)}, None, 0.0, "closed before it opens"),
    Example("well: <answer>4</answer>.", {"tags": ("answer",)}, "4", 1.0, "which may be allowed"),
)

EXAMPLES = {
    "is_json": IS_JSON,
    "has_code_block": HAS_CODE_BLOCK,
    "has_boxed": HAS_BOXED,
    "is_one_line": IS_ONE_LINE,
    "has_length": HAS_LENGTH,
    "has_tags": HAS_TAGS,
}
