"""A model in this process as judge. With random weights it is a bad one, never a dishonest one."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from heldout._core.config import Sampling
from heldout.errors import NoVerdict
from heldout.models.local import LocalEndpoint
from heldout.scoring.judges import Judge, Question
from heldout.types import Message
from tests.scoring.judges.scripted import equality_question
from tests.tiny_model import save_tiny_model

pytestmark = pytest.mark.integration


def test_what_a_weak_judge_says_is_no_verdict_and_it_is_loaded_once_for_all_event_loops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, loaded = LocalEndpoint.load, []

    def count_and_load(name: str, **options: object) -> LocalEndpoint:
        loaded.append(name)
        return load(name, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(LocalEndpoint, "load", count_and_load)
    judge = Judge(f"hf:{save_tiny_model(tmp_path)}", sampling=Sampling(max_tokens=4), attempts=1)
    read = equality_question("?", "a", "b").read
    for text, backend in (("w1 w2", "asyncio"), ("w3 w4", "trio")):
        question = Question("brief/1", (Message("user", text),), {"text": text}, read)
        with pytest.raises(NoVerdict, match=r"gave no verdict in one attempt \(brief/1\)"):
            anyio.run(judge.ask, question, backend=backend)
    assert len(loaded) == 1
    anyio.run(judge.close)
