"""The public names of heldout, and the page that documents each: docs/reference.md.

make reference          writes the page; tests/test_reference.py compares it
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference.md"
PACKAGES = {
    "heldout": (
        "what an eval file needs",
        "comparing evals data environments rollouts reports training models",
    ),
    "heldout.types": ("what evals are made of", "evals data models reports environments"),
    "heldout.errors": ("what heldout raises", "commands evals"),
    "heldout.environment": ("the protocol of environments", "environments"),
    "heldout.datasets": ("files and published datasets to samples", "data code"),
    "heldout.models": ("who answers", "models vllm"),
    "heldout.scoring": ("graders, judges, rubrics", "graders judges code"),
    "heldout.environments": ("tools, interpreters, agents, users", "environments policy-server"),
    "heldout.sandbox": ("where programs run that models wrote", "sandbox code"),
    "heldout.rollouts": ("rollouts for training", "rollouts data"),
    "heldout.training": ("evals while a policy trains", "training async verdicts trainers"),
    "heldout.training.loggers": ("trackers", "loggers"),
    "heldout.vector": ("agents in vectorised environments", "vector"),
    "heldout.analysis": ("what loaded reports say", "comparing aggregates judge-check"),
    "heldout.stats": ("numbers in, numbers out", "statistics"),
    "heldout.stats.stopping": ("evals that stop, races, ranks", "statistics adaptive"),
    "heldout.store": ("run directories", "reports"),
    "heldout.cluster": ("more than one machine", "cluster"),
    "heldout.testing": ("checks of one's own environment and trainer", "environments training"),
    "heldout.viewer": ("notebooks", "view"),
    "heldout.cli": ("a file that is its own command", "evals"),
    "heldout.integrations.transformers": ("a trainer", "trainers training"),
    "heldout.integrations.trl": ("a trainer", "trl"),
    "heldout.integrations.accelerate": ("a trainer", "loops"),
    "heldout.integrations.lightning": ("a trainer", "loops"),
    "heldout.integrations.stable_baselines3": ("a trainer", "vector"),
    "heldout.integrations.tinker": ("a trainer", "tinker"),
    "heldout.adapters": (
        "other people's evals and logs",
        "adapters import inspect lm-eval verifiers",
    ),
}
"""Every package that has public names: what they are, and the pages to look in first."""


def file_of(package: str) -> Path:
    path = ROOT / "src" / package.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def body_of(package: str) -> list[ast.stmt]:
    """The statements of a module, with those for type checkers, read as static tools read them."""
    body = ast.parse(file_of(package).read_text()).body
    return [*body, *(inner for node in body if isinstance(node, ast.If) for inner in node.body)]


def public_names(package: str) -> list[str]:
    """The names of `__all__`, or of imports `X as X`."""
    names: set[str] = set()
    for node in body_of(package):
        match node:
            case ast.ImportFrom(names=imported):
                names |= {each.name for each in imported if each.asname == each.name}
            case ast.Assign(targets=[ast.Name("__all__")], value=ast.List(elts)):
                names |= {str(each.value) for each in elts if isinstance(each, ast.Constant)}
    return sorted(names, key=lambda name: (name.lower(), name))


def summary_of(package: str, name: str) -> str:
    """The first line of what a name says of itself, wherever it is defined."""
    body = body_of(package)
    for node, below in zip(body, [*body[1:], None], strict=True):
        match node:
            case ast.ImportFrom(module=str(home), names=imported):
                if any(each.name == name for each in imported) and home.startswith("heldout"):
                    return summary_of(home, name)
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                if node.name == name:
                    return (ast.get_docstring(node) or "").split("\n")[0]
            case ast.Assign(targets=[ast.Name(own)]) | ast.AnnAssign(target=ast.Name(own)):
                if own == name and isinstance(below, ast.Expr):
                    return str(ast.literal_eval(below.value)).split("\n")[0]
    return ""


def pages() -> dict[str, Counter[str]]:
    """How often every word stands on each page."""
    return {
        page.relative_to(ROOT / "docs").as_posix(): Counter(re.findall(r"\w+", page.read_text()))
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if page != PAGE and "design" not in page.parts
    }


def page_of(name: str, first: str, words: dict[str, Counter[str]]) -> str | None:
    """The page of a name: of the first ones that has it, else that which says most of it."""
    for page in (f"{each}.md" for each in first.split()):
        if words[page][name]:
            return page
    most = max(words, key=lambda page: words[page][name])
    return most if words[most][name] else None


def lines() -> Iterator[str]:
    yield "# The public names"
    yield ""
    yield "What has no underscore at the top of `heldout` is public through its package. Here is"
    yield "every such name, with the page that documents it. `make reference` writes this page."
    words = pages()
    for package, (about, first) in PACKAGES.items():
        yield ""
        yield f"## `{package}`"
        yield ""
        yield f"{about[0].upper()}{about[1:]}."
        yield ""
        yield "| name | what it is | page |"
        yield "|---|---|---|"
        for name in public_names(package):
            page = page_of(name, first, words)
            link = f"[{page.removesuffix('.md')}]({page})" if page else ""
            yield f"| `{name}` | {summary_of(package, name).replace('|', chr(92) + '|')} | {link} |"


if __name__ == "__main__":
    PAGE.write_text("\n".join(lines()) + "\n")
