"""`heldout check template`: what it says of a tokenizer, and its exit code."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

from tests._live.rendering.families import byte_level, family, tokenizer_of
from tests.cli.conftest import Heldout


def saved(name: str) -> str:
    family(name).save_pretrained(name)
    return name


def test_where_both_modes_work_it_recommends_boundary(heldout: Heldout) -> None:
    outcome = heldout("check", "template", saved("qwen2_5"))
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0] == "qwen2_5"
    assert lines[-2] == "A turn ends in <|im_end|>"
    assert lines[-1].startswith("use segments='boundary': both modes work")
    assert "Written as text" not in outcome.out
    rows = [line.split("  ")[0].strip() for line in lines if line.count("works") == 2]
    assert rows == [
        "user reply",
        "user reply with system prompt",
        "user reply to reasoning",
        "user reply to a turn cut off",
        "tool reply",
        "tool reply with system prompt",
        "two tool replies",
        "tool reply to reasoning",
    ]


def test_a_template_that_allows_neither_mode_ends_in_1(heldout: Heldout) -> None:
    Path("melting.jinja").write_text(
        "{% for m in messages %}{{ m.content | upper if not loop.last else m.content }}\n\n"
        "{% endfor %}{% if add_generation_prompt %}: {% endif %}"
    )
    outcome = heldout("check", "template", saved("qwen3"), "--template", "melting.jinja")
    assert outcome.code == 1
    assert outcome.out.splitlines()[-1].startswith("neither mode works")


def test_as_json_it_prints_one_line_with_every_finding(heldout: Heldout) -> None:
    outcome = heldout("check", "template", saved("glm4moe"), "--json")
    assert outcome.code == 0
    assert outcome.out.count("\n") == 1
    shown = json.loads(outcome.out)
    assert shown["tokenizer"] == "glm4moe"
    assert shown["end_of_turn"] == ["<|user|>", "<|observation|>"]
    assert shown["as_text"] == []
    assert shown["recommended"] == "boundary"
    failed = [(f["kind"], f["segments"]) for f in shown["findings"] if f["ok"] is False]
    assert failed == [("user reply to reasoning", "suffix")]
    assert len(shown["findings"]) == 16


def test_what_a_template_says_is_shown_and_not_obeyed(heldout: Heldout) -> None:
    Path("rude.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'system' %}"
        "{{ raise_exception('\x1b[31m[bold]red\n row') }}{% endif %}"
        "<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>{% endif %}"
    )
    outcome = heldout("check", "template", saved("qwen2_5"), "--template", "rude.jinja")
    assert outcome.code == 0
    assert r"\x1b[31m[bold]red\n row" in outcome.out
    assert "\x1b" not in outcome.out


REFUSED = {
    ("bare",): "has no chat template",
    ("nobody/nothing",): "Error: 'nobody/nothing' is no directory, and no tokenizer of that name "
    "has been downloaded: `hf download nobody/nothing` downloads it, if it is on the Hugging Face "
    "hub\n",
    ("empty",): "cannot load a tokenizer from empty",
    ("qwen2_5", "--template", "none.jinja"): "cannot read the template none.jinja",
    ("qwen2_5", "--template", "bytes.jinja"): "cannot read the template bytes.jinja",
    ("qwen2_5", "--template", "broken.jinja"): "broken.jinja cannot render a user's question: ",
}


def test_what_cannot_be_checked_is_refused(heldout: Heldout) -> None:
    saved("qwen2_5")
    tokenizer_of(byte_level, ["<s>"]).save_pretrained("bare")
    Path("empty").mkdir()
    Path("bytes.jinja").write_bytes(b"\xff\xfe")
    Path("broken.jinja").write_text("{% if %}")
    for arguments, said in REFUSED.items():
        outcome = heldout("check", "template", *arguments)
        assert outcome.code == 2
        assert said in outcome.err


def test_without_transformers_it_says_what_to_install(
    heldout: Heldout, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "transformers":
            raise ImportError(name=name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    outcome = heldout("check", "template", "anything")
    assert outcome.code == 2
    assert "transformers is missing): pip install 'accelerate>=1.1'" in outcome.err
