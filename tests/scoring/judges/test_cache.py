from __future__ import annotations

import copy
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch

from heldout.errors import InvalidInput, NoVerdict
from heldout.models import cache
from heldout.models.cache import ResponseCache
from heldout.scoring.judges import Judge, JudgeVerdict, judge
from heldout.scoring.judges.judge import CachedReply, VerdictCache
from heldout.types import Usage
from tests.conftest import both_loops
from tests.scoring.judges.scripted import Scripted, said, three_way_question

Run = Callable[..., Any]


def key(number: int) -> bytes:
    return number.to_bytes(16)


def reply(number: int) -> CachedReply:
    return f'{{"number": {number}}}', 1, Usage(1, 2)


def count_verdicts(path: Path) -> int:
    with ResponseCache(path) as file:
        return file.info().entries


def ask(run: Run, judge: Judge, answer: str = "four") -> JudgeVerdict[Any]:
    return run(judge.ask, three_way_question("2+2?", answer, "4"))  # type: ignore[no-any-return]


def test_a_verdict_survives_its_process_without_its_question(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "new" / "verdicts.db"
    judge = Judge(Scripted(said("incorrect"), usage=Usage(9, 8)), cache=path)
    first = ask(run, judge, "the secret answer")
    endpoint = Scripted(said("correct"))
    second = ask(run, Judge(endpoint, cache=str(path)), "the secret answer")
    assert endpoint.asked == []
    assert (second.value, second.cached, second.reply) == ("incorrect", True, first.reply)
    assert (second.usage, second.attempts) == (Usage(9, 8), 1)
    assert b"since it is so" in path.read_bytes()
    assert b"secret" not in path.read_bytes()


def judging_with(model: Any, asked: list[str]) -> Any:
    def judge(messages: Any) -> str:
        asked.append(type(model).__name__)
        return said("correct")

    return judge


def test_a_verdict_is_not_another_models_of_the_same_name(run: Run, tmp_path: Path) -> None:
    path, asked = tmp_path / "verdicts.db", list[str]()
    model = torch.nn.Linear(2, 2)
    for given in (model, copy.deepcopy(model)):
        ask(run, Judge(judging_with(given, asked), cache=path))
    assert len(asked) == 1
    judge = Judge(judging_with(model, asked), cache=path)
    judge.identity()
    write(model)
    judge.identity()  # as at the start of an eval
    assert not ask(run, judge).cached
    assert len(asked) == 2


def write(model: torch.nn.Linear) -> None:
    with torch.no_grad():
        model.weight.add_(1)


def write_uncounted(model: torch.nn.Linear) -> None:
    model.weight.data.add_(1)  # torch counts no write through `.data`


@pytest.mark.parametrize("train", [write, write_uncounted])
def test_a_judge_whose_weights_change_is_asked_again(run: Run, tmp_path: Path, train: Any) -> None:
    """A reward model that trains, a policy that judges itself: no eval begins in between."""
    asked = list[str]()
    model = torch.nn.Linear(2, 2)
    judge = Judge(judging_with(model, asked), cache=tmp_path / "verdicts.db")
    assert [ask(run, judge).cached for _ in range(2)] == [False, True]
    train(model)
    assert [ask(run, judge).cached for _ in range(2)] == [False, True]
    assert len(asked) == 2


def test_a_verdict_during_which_the_weights_changed_is_not_reused(run: Run) -> None:
    model = torch.nn.Linear(2, 2)
    first = copy.deepcopy(model.state_dict())

    def judging(messages: Any) -> str:
        write(model)
        return said("correct")

    judge = Judge(judging)
    assert not ask(run, judge).cached
    model.load_state_dict(first)
    assert not ask(run, judge).cached


@both_loops
def test_questions_asked_at_once_share_a_look_at_the_weights(run: Run) -> None:
    endpoint = Scripted(said("correct"))
    looks = list[int]()
    describe = endpoint.describe
    endpoint.describe = lambda: looks.append(1) or describe()  # type: ignore[method-assign]
    judge = Judge(endpoint)

    async def ask_all() -> None:
        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(judge.ask, three_way_question("2+2?", str(number), "4"))

    run(ask_all)
    assert len(endpoint.asked) == 40
    assert len(looks) <= 2 + 40  # before, and after each reply


def test_verdicts_of_a_model_that_cannot_be_known_are_not_reused(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, asked = tmp_path / "verdicts.db", list[str]()
    judge = Judge(judging_with(torch.nn.Linear(2, 2, device="meta"), asked), cache=path)
    for _ in range(2):
        assert not ask(run, judge).cached
    assert len(asked) == 2
    assert "verdicts are not reused" in caplog.text


def test_failures_are_not_kept(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "verdicts.db"
    judge = Judge(Scripted("hm", "hm", said("correct")), attempts=2, cache=path)
    with pytest.raises(NoVerdict):
        ask(run, judge)
    assert count_verdicts(path) == 0
    assert ask(run, judge).value == "correct"
    assert count_verdicts(path) == 1


def test_an_edited_reply_costs_a_question_and_spoils_no_verdict(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "verdicts.db"
    ask(run, Judge(Scripted(said("correct")), cache=path))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "update turns set turn = cast(replace(turn, 'correct', 'CORRECT') as blob)"
        )
    verdict = ask(run, Judge(Scripted(said("incorrect")), cache=path))
    assert (verdict.value, verdict.cached) == ("incorrect", False)


def test_a_file_that_is_something_else_or_cannot_be_made_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text('{"question": "2+2?"}\n')
    with pytest.raises(InvalidInput, match="file is not a database"):
        Judge(Scripted(""), cache=path)
    assert path.read_text() == '{"question": "2+2?"}\n'
    with pytest.raises(InvalidInput, match="cannot use .*v.db"):
        Judge(Scripted(""), cache=path / "v.db")


def test_two_judges_share_a_file_and_find_what_the_other_has_added(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "verdicts.db"
    first, second = (Judge(Scripted(said("correct")), cache=path) for _ in range(2))
    assert not ask(run, first, "a").cached
    assert ask(run, second, "a").cached
    assert not ask(run, second, "b").cached
    assert ask(run, first, "b").cached


def test_a_file_that_was_removed_or_replaced_is_read_anew(run: Run, tmp_path: Path) -> None:
    path, other = tmp_path / "verdicts.db", tmp_path / "other.db"

    async def main() -> None:
        cache = VerdictCache(path)
        await cache.put(key(1), reply(1))
        await VerdictCache(other).put(key(3), reply(3))
        other.replace(path)
        assert await cache.get(key(3)) == reply(3)
        assert await cache.get(key(1)) is None
        path.unlink()
        assert await cache.get(key(3)) is None

    run(main)


def test_a_reply_with_half_a_surrogate_pair_beside_its_verdict_is_kept(
    run: Run, tmp_path: Path
) -> None:
    reply = f"<think>\ud800</think>{said('correct')}"
    path = tmp_path / "verdicts.db"
    first = ask(run, Judge(Scripted(reply), cache=path))
    again = ask(run, Judge(Scripted(""), cache=path))
    assert first.reply.startswith("<think>\\ud800<")
    assert (again.reply, again.value, again.cached) == (first.reply, "correct", True)


def test_a_verdict_that_could_not_be_written_is_used_and_one_warning_says_so(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "verdicts.db"
    endpoint = Scripted(said("correct"))
    judge = Judge(endpoint, cache=path)
    monkeypatch.setattr(cache, "BUSY_SECONDS", 0.0)
    with closing(sqlite3.connect(path)) as busy:
        busy.execute("begin exclusive")
        with pytest.warns(RuntimeWarning, match="cannot be kept in .*: database is locked"):
            verdict = ask(run, judge, "one")
        assert verdict.value == "correct"
        assert ask(run, judge, "two").value == "correct"  # a second warning would be an error
        assert ask(run, judge, "one").cached
        assert len(endpoint.asked) == 2
    ask(run, judge, "three")
    assert count_verdicts(path) == 1


@both_loops
def test_the_event_loop_goes_on_while_another_process_writes(backend: str, tmp_path: Path) -> None:
    """Both end in time only if the loop goes on to end the other one's transaction."""
    path = tmp_path / "verdicts.db"
    kept = VerdictCache(path)

    async def main() -> None:
        with closing(sqlite3.connect(path)) as busy:
            busy.execute("begin exclusive")
            async with anyio.create_task_group() as group:
                group.start_soon(kept.put, key(1), reply(1))
                group.start_soon(kept.get, key(2))
                await anyio.wait_all_tasks_blocked()
                busy.rollback()

    anyio.run(main, backend=backend)
    assert count_verdicts(path) == 1


def test_memory_keeps_the_newest(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "MAX_IN_MEMORY", 2)

    async def main() -> None:
        memory = VerdictCache()
        for number in (1, 2, 3):
            await memory.put(key(number), reply(number))
        assert await memory.get(key(1)) is None
        assert await memory.get(key(3)) == reply(3)

    run(main)
