from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heldout.errors import NoVerdict, RunDirectoryError, StorageFull, UnknownFormat
from heldout.scoring.judges import Judge, Verdict, three_way_question
from heldout.scoring.judges.cache import VERDICTS, FileVerdicts, Kept, MemoryVerdicts
from heldout.store.jsonl import LineWriter
from heldout.types import Usage
from tests.scoring.judges.scripted import Scripted, said

Run = Callable[..., Any]


def kept(number: int, reply: str = "{}") -> Kept:
    return Kept(f"{number:032x}", "equality/1", "judge", reply, 1, Usage(1, 2))


def ask(run: Run, judge: Judge, answer: str = "four") -> Verdict[Any]:
    return run(judge.ask, three_way_question("2+2?", answer, "4"))  # type: ignore[no-any-return]


def test_a_verdict_survives_its_process(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "new" / "verdicts.jsonl"
    first = ask(run, Judge(Scripted(said("incorrect"), usage=Usage(9, 8)), cache=path))
    endpoint = Scripted(said("correct"))
    second = ask(run, Judge(endpoint, cache=str(path)))
    assert endpoint.asked == []
    assert (second.value, second.cached, second.reply) == ("incorrect", True, first.reply)
    assert (second.usage, second.attempts) == (Usage(9, 8), 1)


def test_the_file_holds_replies_and_neither_questions_nor_answers(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    ask(run, Judge(Scripted(said("correct")), cache=path), "the secret answer")
    header, line = path.read_text().splitlines()
    assert json.loads(header) == {"format": "heldout.verdicts", "version": 1}
    assert {*json.loads(line)} == {"key", "prompt", "judge", "reply", "attempts", "usage"}
    assert "secret" not in line


def judging_with(model: Any, asked: list[str]) -> Any:
    def judge(messages: Any) -> str:
        asked.append(type(model).__name__)
        return said("correct")

    return judge


def test_a_verdict_is_not_another_models_of_the_same_name(run: Run, tmp_path: Path) -> None:
    path, asked = tmp_path / "verdicts.jsonl", list[str]()
    model = torch.nn.Linear(2, 2)
    for given in (model, copy.deepcopy(model)):
        ask(run, Judge(judging_with(given, asked), cache=path))
    assert len(asked) == 1
    judge = Judge(judging_with(model, asked), cache=path)
    judge.identity()
    with torch.no_grad():
        model.weight.add_(1)
    judge.identity()  # as at the start of an eval
    assert not ask(run, judge).cached
    assert len(asked) == 2


def test_verdicts_of_a_model_that_cannot_be_known_are_not_reused(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, asked = tmp_path / "verdicts.jsonl", list[str]()
    judge = Judge(judging_with(torch.nn.Linear(2, 2, device="meta"), asked), cache=path)
    for _ in range(2):
        assert not ask(run, judge).cached
    assert len(asked) == 2
    assert "verdicts are not reused" in caplog.text


def test_failures_are_not_kept(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    judge = Judge(Scripted("hm", "hm", said("correct")), attempts=2, cache=path)
    with pytest.raises(NoVerdict):
        ask(run, judge)
    assert not path.exists()
    assert ask(run, judge).value == "correct"
    assert len(path.read_text().splitlines()) == 2


def test_a_torn_last_line_is_cut_off_and_the_rest_is_kept(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    judge = Judge(Scripted(said("correct")), cache=path)
    ask(run, judge, "one")
    ask(run, judge, "two")
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    endpoint = Scripted(said("correct"))
    judge = Judge(endpoint, cache=path)
    assert ask(run, judge, "one").cached
    assert not ask(run, judge, "two").cached
    assert path.read_bytes() == whole


def test_an_edited_reply_costs_a_question_and_spoils_no_verdict(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    ask(run, Judge(Scripted(said("correct")), cache=path))
    path.write_text(path.read_text().replace("correct", "CORRECT"))
    verdict = ask(run, Judge(Scripted(said("incorrect")), cache=path))
    assert (verdict.value, verdict.cached) == ("incorrect", False)


@pytest.mark.parametrize("line", ["not json", '{"key": "zz"}', "[" * 20_000, '{"key": "\\ud800"}'])
def test_a_damaged_line_is_named_when_the_judge_is_made(line: str, tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    FileVerdicts(path).put(kept(1))
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(RunDirectoryError, match="verdicts.jsonl, line 3: not a readable verdict"):
        Judge(Scripted(""), cache=path)


def test_a_file_that_is_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"question": "2+2?"}\n')
    with pytest.raises(RunDirectoryError, match="no cache of verdicts"):
        Judge(Scripted(""), cache=path)
    assert path.read_text() == '{"question": "2+2?"}\n'
    path.write_text('{"format": "heldout.verdicts", "version": 9}\n')
    with pytest.raises(UnknownFormat, match="A newer heldout may read it"):
        Judge(Scripted(""), cache=path)
    path.write_text("no line end, and no cache")
    with pytest.raises(RunDirectoryError, match="no cache of verdicts"):
        Judge(Scripted(""), cache=path)
    assert path.read_text() == "no line end, and no cache"
    with pytest.raises(RunDirectoryError, match="not an ordinary file"):
        Judge(Scripted(""), cache=tmp_path)


def test_two_judges_share_a_file_and_find_what_the_other_has_added(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "verdicts.jsonl"
    one, two = Scripted(said("correct")), Scripted(said("correct"))
    first, second = Judge(one, cache=path), Judge(two, cache=path)
    for answer in ("a", "b", "c"):
        assert not ask(run, first, answer).cached
        assert ask(run, second, answer).cached
    assert not ask(run, second, "d").cached
    assert ask(run, first, "d").cached
    assert (len(one.asked), len(two.asked)) == (3, 1)


def test_processes_that_write_at_once_leave_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    code = (
        "import sys; from pathlib import Path\n"
        "from tests.scoring.judges.test_cache import FileVerdicts, kept\n"
        "cache, first = FileVerdicts(Path(sys.argv[1])), int(sys.argv[2])\n"
        "for i in range(200): cache.put(kept(first + i, 'x' * i))\n"
        "cache.close()\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(path), str(first)])
        for first in (1000, 2000)
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    cache = FileVerdicts(path)
    for first in (1000, 2000):
        for i in range(200):
            assert cache.get(f"{first + i:032x}") == kept(first + i, "x" * i)
    assert len(path.read_bytes().splitlines()) == 401


def test_what_could_not_be_written_is_remembered_and_written_with_the_next(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    cache = FileVerdicts(path)
    busy = LineWriter(path, VERDICTS)
    cache.put(kept(1))
    assert len(path.read_bytes().splitlines()) == 1
    assert cache.get(kept(1).key) == kept(1)
    busy.close()
    cache.put(kept(2))
    assert FileVerdicts(path).get(kept(1).key) == kept(1)
    assert FileVerdicts(path).get(kept(2).key) == kept(2)


def test_a_file_that_was_removed_or_replaced_is_read_anew(tmp_path: Path) -> None:
    path, other = tmp_path / "verdicts.jsonl", tmp_path / "other.jsonl"
    cache = FileVerdicts(path)
    cache.put(kept(1))
    cache.put(kept(2))
    FileVerdicts(other).put(kept(3))
    other.replace(path)
    assert cache.get(kept(3).key) == kept(3)
    assert cache.get(kept(1).key) is None
    path.unlink()
    assert cache.get(kept(3).key) is None
    cache.put(kept(4))
    assert cache.get(kept(4).key) == kept(4)


def test_a_file_of_the_same_inode_and_size_is_read_anew_where_its_content_is_another(
    tmp_path: Path,
) -> None:
    # What is removed gives its inode to the next file, which may well be of the same size.
    path, other = tmp_path / "verdicts.jsonl", tmp_path / "other.jsonl"
    cache = FileVerdicts(path)
    cache.put(kept(1))
    FileVerdicts(other).put(kept(2))
    inode, size = path.stat().st_ino, path.stat().st_size
    path.write_bytes(other.read_bytes())
    assert (path.stat().st_ino, path.stat().st_size) == (inode, size)
    assert cache.get(kept(2).key) == kept(2)


def test_a_place_that_holds_another_verdict_by_now_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    cache = FileVerdicts(path)
    cache.put(kept(1))
    path.write_bytes(path.read_bytes().replace(kept(1).key.encode(), kept(2).key.encode()))
    assert cache.get(kept(1).key) is None


def test_a_reply_with_half_a_surrogate_pair_beside_its_verdict_is_kept(
    run: Run, tmp_path: Path
) -> None:
    reply = f"<think>\ud800</think>{said('correct')}"
    path = tmp_path / "verdicts.jsonl"
    first = ask(run, Judge(Scripted(reply), cache=path))
    again = ask(run, Judge(Scripted(""), cache=path))
    assert first.reply.startswith("<think>\\ud800<")
    assert (again.reply, again.value, again.cached) == (first.reply, "correct", True)


def test_a_link_is_not_followed_by_a_writer(tmp_path: Path) -> None:
    target, path = tmp_path / "theirs", tmp_path / "verdicts.jsonl"
    path.symlink_to(target)
    with pytest.raises(RunDirectoryError, match="symbolic link"):
        FileVerdicts(path)
    assert not target.exists()


def test_a_cache_that_cannot_be_written_is_refused_before_anything_is_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="v.jsonl: Not a directory"):
        Judge(Scripted(""), cache=tmp_path / "file" / "v.jsonl")
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(RunDirectoryError, match="cannot write .*v.jsonl"):
        Judge(Scripted(""), cache=tmp_path / "new" / "v.jsonl")
    assert not (tmp_path / "new").exists()


def test_a_verdict_that_could_not_be_written_is_used_and_one_warning_says_so(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "verdicts.jsonl"
    endpoint = Scripted(said("correct"))
    judge = Judge(endpoint, cache=path)

    def full(writer: LineWriter, line: bytes) -> None:
        raise StorageFull("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(LineWriter, "append_line", full)
        with pytest.warns(RuntimeWarning, match="cannot be kept in .*: no space left"):
            verdict = ask(run, judge, "one")
        assert verdict.value == "correct"
        assert ask(run, judge, "two").value == "correct"  # a second warning would be an error
        assert ask(run, judge, "one").cached
        assert len(endpoint.asked) == 2
    ask(run, judge, "three")
    assert len(path.read_text().splitlines()) == 4


def test_nobody_waits_for_a_lock_that_another_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "verdicts.jsonl"
    cache = FileVerdicts(path)
    busy = LineWriter(path, VERDICTS)
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("the event loop stands still"))
    for number in range(5):
        cache.put(kept(number))
    busy.close()
    cache.close()
    assert len(path.read_bytes().splitlines()) == 6


def test_what_waits_to_be_written_is_written_when_the_event_loop_ends(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "verdicts.jsonl"

    async def main() -> None:
        busy = LineWriter(path, VERDICTS)
        await Judge(Scripted(said("correct")), cache=path).ask(three_way_question("q", "a", "t"))
        busy.close()

    run(main)
    assert len(path.read_bytes().splitlines()) == 2


def test_memory_keeps_those_that_were_used_last() -> None:
    memory = MemoryVerdicts(most=2)
    memory.put(kept(1))
    memory.put(kept(2))
    assert memory.get(kept(1).key) == kept(1)
    memory.put(kept(3))
    assert memory.get(kept(2).key) is None
    assert memory.get(kept(1).key) == kept(1)
