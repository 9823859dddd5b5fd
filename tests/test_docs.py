"""Every code block in the documentation runs."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from heldout.cli.main import run_cli

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md")))]
MARKS = {
    "README.md": (pytest.mark.integration,),  # SmolLM2 answers, and is trained for four steps
    # Their examples run programs of models.
    **dict.fromkeys(("docs/code.md", "docs/sandbox.md"), (pytest.mark.needs("bubblewrap"),)),
}
# Made of tables by tests/scoring/pages.py, and linked from docs/graders.md.
GRADERS = [f"docs/graders/{p.name}" for p in sorted((ROOT / "docs" / "graders").glob("*.md"))]
CHANGES = [f"changes/{p.name}" for p in sorted((ROOT / "changes").glob("*.md"))]
# Of why heldout is as it is, and linked from docs/architecture.md.
DESIGN = [f"docs/design/{p.name}" for p in sorted((ROOT / "docs" / "design").glob("*.md"))]
# Commands of blocks that are about other machines: a server, a package index.
ELSEWHERE = (
    *("make ", "pip install", "source ", "--model openai:", "--judge openai:", "heldout view"),
    "--model hf:PATH",
    # Run by `make demo`, on a real model: tests/integration/test_smollm2.py.
    *("heldout.examples.capitals", "heldout show capitals --failures 5"),
)


def blocks(page: str) -> list[tuple[str, str]]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)
    return [(kind, code) for kind, code in found]


# Lightning asks for more workers, and uses torch's old names.
@pytest.mark.filterwarnings("ignore::Warning:lightning")
# The README's model is read from a GGUF file, if this is its first use on this machine.
@pytest.mark.filterwarnings("ignore::Warning:(torch|transformers|gguf)")
@pytest.mark.parametrize(
    "page",
    [*(pytest.param(page, marks=MARKS.get(page, ())) for page in PAGES), *GRADERS, *DESIGN],
)
def test_the_code_blocks_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as for a script in this folder
    monkeypatch.delitem(sys.modules, "quiz", raising=False)
    if "HELDOUT_CACHE" not in os.environ:
        monkeypatch.setenv("HELDOUT_CACHE", str(ROOT / ".cache"))
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    for kind, code in blocks(page):
        assert kind in ("python", "sh", "text"), f"{page}: a block of kind {kind!r}"
        if kind == "python":
            if code.startswith("# quiz.py"):  # for the commands that follow it
                (tmp_path / "quiz.py").write_text(code)
            exec(compile(code, f"{page}", "exec"), namespace)
        elif code.startswith('{"question"'):
            (tmp_path / "quiz.jsonl").write_text(code)
        elif kind == "sh":
            for line in code.splitlines():
                command = line.partition("#")[0].strip()
                if command.startswith("heldout") and not any(e in command for e in ELSEWHERE):
                    assert run_cli(shlex.split(command)[1:]) == 0, command
                else:
                    assert any(e in command for e in ELSEWHERE), f"{page}: {command} is not run"


def test_no_page_installs_heldout_from_an_index_that_does_not_have_it() -> None:
    """Until the first release: RELEASING.md says what changes then."""
    examples = [f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")]
    for page in (*PAGES, *GRADERS, *CHANGES, "CHANGELOG.md", "CONTRIBUTING.md", *examples):
        text = (ROOT / page).read_text()
        found = re.search(r"(pip install|uv add|uv pip install)[^`\n#]*\bheldout\b(?!/)", text)
        assert found is None or "./heldout" in found[0], f"{page}: {found}"
        assert "heldout[" not in text, page
    assert "Nothing is released yet" in (ROOT / "CHANGELOG.md").read_text()


def test_every_page_is_linked_from_the_readme_and_links_lead_somewhere() -> None:
    readme = (ROOT / "README.md").read_text()
    for page in PAGES[1:]:
        assert f"({page})" in readme, f"{page} is not linked"
    graders = (ROOT / "docs/graders.md").read_text()
    for page in GRADERS:
        assert f"({page.removeprefix('docs/')})" in graders, f"{page} is not linked"
    architecture = (ROOT / "docs/architecture.md").read_text()
    for page in DESIGN:
        assert f"({page.removeprefix('docs/')})" in architecture, f"{page} is not linked"
    for page in (*PAGES, *GRADERS, *DESIGN):
        for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text()):
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


def tables(page: str) -> list[list[list[str]]]:
    """The tables of a page: rows of cells, the heading first."""
    found = re.findall(r"(?:^\|.*\n)+", (ROOT / page).read_text(), re.M)
    return [
        [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table.splitlines()]
        for table in found
    ]


def test_every_difference_from_the_source_designs_has_a_test_that_exists() -> None:
    differences = [t for t in tables("docs/design/sources.md") if t[0][-1].strip("| ") == "test"]
    assert len(differences) == 5
    for _, _, *rows in differences:
        for row in rows:
            assert len(row) == 4, row
            named = re.findall(r"`(\S+?)::(\w+)`", row[-1])
            assert named, f"no test: {row}"
            for file, test in named:
                assert re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text(), re.M), test


def test_the_names_that_stand_for_those_of_the_source_designs_are_in_the_code() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    renamed = [t for t in tables("docs/design/sources.md") if t[0][-1].strip("| ") == "heldout"]
    assert len(renamed) == 5
    for _, _, *rows in renamed:
        for row in rows:
            for quoted in re.findall("`([^`]+)`", row[-1]):
                for name in re.findall(r"[A-Za-z_]{3,}", quoted.partition(":")[0]):
                    assert re.search(rf"{name}\b", code), f"{name} of {row}"
