"""Every code block in the documentation runs."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from heldout.cli.main import run_cli

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md")))]
# Made of tables by tests/scoring/pages.py, and linked from docs/graders.md.
GRADERS = [f"docs/graders/{p.name}" for p in sorted((ROOT / "docs" / "graders").glob("*.md"))]
# Commands of blocks that are about other machines: a server, a package index.
ELSEWHERE = (
    *("make ", "pip install", "--model openai:", "--judge openai:", "heldout view"),
    "heldout.examples.capitals",  # on a real model: tests/integration/test_smollm2.py
)


def blocks(page: str) -> list[tuple[str, str]]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)
    return [(kind, code) for kind, code in found]


@pytest.fixture
def quiz(tmp_path: Path) -> None:
    """The data the README's eval file asks for, and an answer to it that needs no model."""
    rows = [
        {"question": f"Capital of {c}?", "answer": a, "difficulty": d}
        for c, a, d in (("France", "Paris", "easy"), ("Chad", "N'Djamena", "hard"))
    ]
    (tmp_path / "quiz.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))


@pytest.mark.usefixtures("quiz")
# Lightning asks for more workers, and uses torch's old names.
@pytest.mark.filterwarnings("ignore::Warning:lightning")
@pytest.mark.parametrize("page", [*PAGES, *GRADERS])
def test_the_code_blocks_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    for kind, code in blocks(page):
        assert kind in ("python", "sh", "text"), f"{page}: a block of kind {kind!r}"
        if kind == "python":
            if code.startswith("# quiz.py"):
                # Run by the commands that follow it, on a model that is quicker to have.
                answer = "import heldout\nconfig = heldout.EvalConfig(endpoint=lambda m: 'Paris')\n"
                (tmp_path / "quiz.py").write_text(code + answer)
            exec(compile(code, f"{page}", "exec"), namespace)
        elif kind == "sh":
            for line in code.splitlines():
                command = line.partition("#")[0].strip()
                if command.startswith("heldout") and not any(e in command for e in ELSEWHERE):
                    assert run_cli(shlex.split(command)[1:]) == 0, command
                else:
                    assert any(e in command for e in ELSEWHERE), f"{page}: {command} is not run"


def test_every_page_is_linked_from_the_readme_and_links_lead_somewhere() -> None:
    readme = (ROOT / "README.md").read_text()
    for page in PAGES[1:]:
        assert f"({page})" in readme, f"{page} is not linked"
    graders = (ROOT / "docs/graders.md").read_text()
    for page in GRADERS:
        assert f"({page.removeprefix('docs/')})" in graders, f"{page} is not linked"
    for page in (*PAGES, *GRADERS):
        for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text()):
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"
