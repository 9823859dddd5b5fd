"""A model of 135 million parameters is a bad judge. It must not be a dishonest one."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from heldout.config import Sampling
from heldout.errors import NoVerdict
from heldout.scoring.judges import Judge, Question, equality_question
from heldout.types import Message

pytestmark = [
    pytest.mark.integration,
    # torch and transformers warn about themselves while a GGUF file is read
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
ROOT = Path(__file__).parent.parent.parent.parent


@pytest.fixture(autouse=True)
def weights_stay_in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELDOUT_CACHE", str(ROOT / ".cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_a_question_to_a_weak_judge_ends_in_a_verdict_or_in_none() -> None:
    judge = Judge("smollm2", sampling=Sampling(max_tokens=4), attempts=1)
    # Reading one of our own prompts takes seconds on a CPU, so it is asked in fewer words.
    text = "Is Rome in Italy? Explain in ten sentences."
    read = equality_question("?", "a", "b").read
    question = Question("brief/1", (Message("user", text),), {"text": text}, read)

    async def main() -> None:
        try:
            await judge.ask(question)
        finally:
            await judge.close()

    said = "judge smollm2 gave no verdict in one attempt .*cut off at the length limit"
    with pytest.raises(NoVerdict, match=said):
        anyio.run(main)
