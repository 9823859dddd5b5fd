"""The prompts of a training loop: each once an epoch, and after a restart as if there were none."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heldout import Message, Sample, Trajectory
from heldout.errors import (
    DuplicateSampleId,
    InvalidInput,
    ResumeMismatch,
    RunDirectoryError,
    UnknownFormat,
)
from heldout.rollouts.data_buffer import DataBuffer, epoch_order, rewards_differ
from tests.conftest import make_samples


def ids(samples: list[Sample]) -> list[str]:
    return [sample.id for sample in samples]


# --- Order --------------------------------------------------------------------------------------


def test_epochs_are_shuffled_anew_and_seeds_differ() -> None:
    samples = make_samples(20)
    first, second = DataBuffer(samples, seed=0), DataBuffer(samples, seed=1)
    orders = [first.get_prompts(20), first.get_prompts(20), second.get_prompts(20)]
    assert len({tuple(ids(order)) for order in orders}) == 3
    assert ids(samples) not in [ids(order) for order in orders]


def test_without_shuffling_the_order_is_that_of_the_samples_in_every_epoch() -> None:
    samples = make_samples(5)
    assert DataBuffer(samples, shuffle=False).get_prompts(10) == samples * 2


def test_the_order_does_not_depend_on_the_order_in_which_samples_are_given() -> None:
    samples = make_samples(20)
    backwards = DataBuffer(samples[::-1], seed=3)
    assert backwards.get_prompts(50) == DataBuffer(samples, seed=3).get_prompts(50)


def test_the_order_is_the_same_in_every_version_on_every_machine() -> None:
    """A run that is resumed elsewhere depends on it."""
    samples = make_samples(6)
    assert ids(epoch_order(samples, 0, 0)) == ["s0", "s1", "s5", "s4", "s3", "s2"]
    assert ids(epoch_order(samples, 0, 1)) == ["s1", "s0", "s5", "s4", "s3", "s2"]
    assert ids(epoch_order(samples, 7, 0)) == ["s5", "s1", "s4", "s2", "s0", "s3"]


def test_the_order_is_the_same_in_a_process_that_hashes_otherwise() -> None:
    code = (
        "from heldout import Sample; from heldout.rollouts.data_buffer import DataBuffer;"
        "b = DataBuffer([Sample(f's{i}', {'question': f'what is {i}?'}) for i in range(20)]);"
        "print(*(s.id for s in b.get_prompts(50)))"
    )
    expected = ids(DataBuffer(make_samples(20)).get_prompts(50))
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        said = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment
        )
        assert said.stdout.split() == expected, said.stderr


def test_no_random_state_is_drawn_from_or_set() -> None:
    def states() -> tuple[Any, ...]:
        legacy = np.random.get_state()
        assert isinstance(legacy, tuple)
        return random.getstate(), legacy[1].tolist(), torch.get_rng_state().tolist()

    before = states()
    buffer = DataBuffer(make_samples(10))
    prompts = buffer.get_prompts(25)
    buffer.add(prompts[20:])
    first = buffer.get_prompts(10)
    assert states() == before
    random.seed(1)
    again = DataBuffer(make_samples(10))
    again.add(again.get_prompts(25)[20:])
    assert again.get_prompts(10) == first


def test_epoch_and_position_say_what_was_given_out() -> None:
    buffer = DataBuffer(make_samples(4), seed=9)
    assert (buffer.seed, buffer.epoch, buffer.position, buffer.waiting) == (9, 0, 0, 0)
    prompts = buffer.get_prompts(3)
    assert (buffer.epoch, buffer.position) == (0, 3)
    buffer.add(prompts[:2])
    assert (buffer.epoch, buffer.position, buffer.waiting) == (0, 3, 2)
    buffer.get_prompts(3)
    assert (buffer.epoch, buffer.position, buffer.waiting) == (1, 0, 0)
    buffer.get_prompts(9)
    assert (buffer.epoch, buffer.position) == (3, 1)


# --- Handing back -------------------------------------------------------------------------------


def test_what_is_handed_back_comes_first_in_the_order_it_was_handed_back() -> None:
    buffer = DataBuffer(make_samples(10))
    a, b, c, d = buffer.get_prompts(4)
    buffer.add([d, b])
    buffer.add(iter([a]))
    assert buffer.get_prompts(2) == [d, b]
    new = buffer.get_prompts(3)
    assert new[0] == a
    assert not {a.id, b.id, c.id, d.id} & set(ids(new[1:]))


def test_metadata_comes_back_as_json_has_it_saved_or_not(tmp_path: Path) -> None:
    samples = make_samples(3)
    buffer = DataBuffer(samples)
    [prompt] = buffer.get_prompts(1)
    said = Trajectory((Message("assistant", "so far"),))
    unfinished = {"said": said, "ids": (1, 2), "logprob": np.float32(-0.5), "large": 3**99}
    buffer.add([replace(prompt, metadata={**prompt.metadata, **unfinished})])
    buffer.save(tmp_path / "buffer.json")
    [kept], [loaded] = (
        each.get_prompts(1) for each in (buffer, DataBuffer.load(tmp_path / "buffer.json", samples))
    )
    assert kept == loaded
    assert kept.metadata["difficulty"] == prompt.metadata["difficulty"]
    assert kept.metadata["said"]["messages"][0]["content"] == "so far"
    assert (kept.metadata["ids"], kept.metadata["logprob"]) == ([1, 2], -0.5)
    assert (kept.id, kept.input, kept.ground_truth) == (
        prompt.id,
        prompt.input,
        prompt.ground_truth,
    )


def test_a_note_in_the_metadata_of_a_prompt_is_kept_and_is_not_in_the_dataset(
    tmp_path: Path,
) -> None:
    samples = [Sample(f"s{i}", {"question": str(i)}, [i], {"turns": [1]}) for i in range(3)]
    buffer, path = DataBuffer(samples, shuffle=False), tmp_path / "buffer.json"
    first, second, third = buffer.get_prompts(3)
    first.metadata["partial"] = "so far"
    second.metadata["turns"].append(2)
    third.input["question"] = "something else"
    third.ground_truth.append(9)
    buffer.add([first, second])
    with pytest.raises(InvalidInput, match="'s2' is handed back with another input"):
        buffer.add([third])
    buffer.save(path)
    fresh = [Sample(f"s{i}", {"question": str(i)}, [i], {"turns": [1]}) for i in range(3)]
    assert samples == fresh
    for each in (buffer, DataBuffer.load(path, fresh)):
        prompts = each.get_prompts(5)
        assert [prompt.metadata for prompt in prompts[:2]] == [
            {"turns": [1], "partial": "so far"},
            {"turns": [1, 2]},
        ]
        assert prompts[2:] == fresh


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: replace(s, id="other"), "'other' is handed back, but is not of this buffer"),
        (lambda s: replace(s, input={"question": "!"}), "'s0' is handed back with another input"),
        (lambda s: replace(s, ground_truth="7"), "another ground_truth"),
        (lambda s: replace(s, metadata={"x": object()}), "JSON cannot.*: .* object"),
        (lambda s: replace(s, metadata={"x": float("nan")}), "JSON cannot hold"),
        (lambda s: replace(s, metadata={"x": "\ud800"}), "JSON cannot"),
    ],
)
def test_what_cannot_be_handed_back_is_refused_and_nothing_of_it_is_added(
    change: Callable[[Sample], Any], said: str
) -> None:
    buffer = DataBuffer(make_samples(2), shuffle=False)
    first, second = buffer.get_prompts(2)
    with pytest.raises(InvalidInput, match=said):
        buffer.add([second, change(first)])
    assert buffer.waiting == 0


# --- Groups -------------------------------------------------------------------------------------


def test_groups_are_copies_of_one_prompt_in_the_order_of_prompts() -> None:
    groups = DataBuffer(make_samples(5), samples_per_prompt=3).get_samples(7)
    assert [group[0] for group in groups] == DataBuffer(make_samples(5)).get_prompts(7)
    for group in groups:
        assert group == [group[0]] * 3
        group[0].metadata["note"] = 1
        assert "note" not in group[1].metadata


def test_a_group_comes_back_whole_with_what_each_copy_has_noted() -> None:
    buffer = DataBuffer(make_samples(5), samples_per_prompt=2)
    first, second = buffer.get_samples(2)
    second[1].metadata["so_far"] = "2 +"
    buffer.add_samples([second, first])
    assert buffer.waiting == 2
    again = buffer.get_samples(3)
    assert again[:2] == [second, first]
    assert again[2][0].id not in (first[0].id, second[0].id)


def test_what_is_no_group_of_the_buffer_is_refused_and_nothing_is_added() -> None:
    buffer = DataBuffer(make_samples(5), samples_per_prompt=2)
    first, second = buffer.get_samples(2)
    for wrong in ([], first[:1], [first[0], second[0]], [*first, *first]):
        with pytest.raises(InvalidInput, match="a group of this buffer has 2 copies of one prompt"):
            buffer.add_samples([second, wrong])
    assert buffer.waiting == 0
    with pytest.raises(InvalidInput, match="groups of 2 samples per prompt, which get_samples"):
        buffer.get_prompts(1)
    with pytest.raises(InvalidInput, match="samples_per_prompt must be a whole number >= 1, got 0"):
        DataBuffer(make_samples(5), samples_per_prompt=0)


@pytest.mark.parametrize(
    ("rewards", "differ"),
    [([1, 0], True), ([1.0, 1.0], False), ([1, None, 1], False), ([None], False), ([], False)],
)
def test_a_group_is_kept_where_its_rewards_differ(rewards: list[Any], differ: bool) -> None:
    assert rewards_differ(rewards) is differ


# --- What a buffer is made of -------------------------------------------------------------------


def test_what_is_not_a_dataset_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no samples to train on"):
        DataBuffer([])
    with pytest.raises(InvalidInput, match="holds Samples, got 'what is 1"):
        DataBuffer(["what is 1?"])
    with pytest.raises(DuplicateSampleId, match="'s0' at position 3"):
        DataBuffer([*make_samples(3), make_samples(1)[0]])


def test_a_negative_seed_or_number_of_prompts_is_refused() -> None:
    with pytest.raises(InvalidInput, match="seed must be a whole number >= 0, got -1"):
        DataBuffer(make_samples(2), seed=-1)
    with pytest.raises(InvalidInput, match="n must be a whole number >= 0, got -1"):
        DataBuffer(make_samples(2)).get_prompts(-1)


# --- Training is not on the test set ------------------------------------------------------------


@pytest.mark.parametrize(
    ("held_out", "said"),
    [
        (
            [Sample("theirs", {"question": "what is 2?"}, "8")],
            r"1 .* same input as a held-out sample: 's2' \(held out as 'theirs'\).*Leave them out",
        ),
        (
            [Sample("s1", {"question": "something else"})],
            "but another input .*ids of their own.*: 's1'",
        ),
        (make_samples(20), r"12 training samples have the same input .*'s0', .*'s4' and 7 more"),
    ],
)
def test_what_is_held_out_is_refused_by_input_and_by_id(
    held_out: list[Sample], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=said):
        DataBuffer(make_samples(12), held_out=held_out)
    DataBuffer(make_samples(12)).save(tmp_path / "b.json")
    with pytest.raises(InvalidInput, match=said):
        DataBuffer.load(tmp_path / "b.json", make_samples(12), held_out=held_out)
    assert DataBuffer(make_samples(15), held_out=iter(make_samples(20)[15:])).get_prompts(15)


def test_questions_about_two_pictures_are_not_the_same_for_being_worded_alike() -> None:
    def asked(id: str) -> Sample:
        return Sample(id, {"question": "What is this?", "picture": object()})

    assert DataBuffer([asked("a")], held_out=[asked("b")]).get_prompts(1)


# --- Saving and loading -------------------------------------------------------------------------


@dataclass
class Model:
    """What a buffer does, by a list that is long enough and a queue."""

    stream: list[list[Sample]]
    queue: list[list[Sample]]

    def get(self, n: int) -> list[list[Sample]]:
        given, self.queue = self.queue[:n], self.queue[n:]
        new, self.stream = self.stream[: n - len(given)], self.stream[n - len(given) :]
        return given + new


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
gets = st.tuples(st.just("get"), st.integers(0, 12))
adds = st.tuples(st.just("add"), st.lists(st.integers(0, 30), max_size=4))
notes = st.tuples(st.just("note"), st.dictionaries(st.text("xy"), values, max_size=3))
restarts = st.tuples(st.just("restart"), st.just(None))


@settings(max_examples=40)
@given(
    n=st.integers(1, 9),
    seed=st.integers(0, 2**63 - 1),
    shuffle=st.booleans(),
    size=st.integers(1, 3),
    actions=st.lists(gets | adds | notes | restarts, max_size=25),
)
def test_a_buffer_gives_what_it_would_have_given_without_restarts(
    n: int, seed: int, shuffle: bool, size: int, actions: list[tuple[str, Any]]
) -> None:
    samples = make_samples(n)
    stream = [[s] * size for e in range(400 // n + 1) for s in epoch_order(samples, seed, e)]
    unshuffled = [[s] * size for s in samples] * (400 // n + 1)
    model = Model(stream if shuffle else unshuffled, [])
    buffer = DataBuffer(samples, seed, shuffle=shuffle, samples_per_prompt=size)
    given: list[list[Sample]] = []
    with TemporaryDirectory() as folder:
        path = Path(folder) / "buffer.json"
        for action, what in actions:
            if action == "get":
                groups = buffer.get_samples(what)
                assert groups == model.get(what)
                given += groups
            elif action == "add" and given:
                back = [given[place % len(given)] for place in what]
                buffer.add_samples(back)
                model.queue += back
            elif action == "note" and given:
                *others, last = given[-1]
                back = [[*others, replace(last, metadata=what)]]
                buffer.add_samples(back)
                model.queue += back
            elif action == "restart":
                before = (buffer.epoch, buffer.position, buffer.waiting, buffer.seed)
                buffer.save(path)
                buffer = DataBuffer.load(path, make_samples(n))
                assert (buffer.epoch, buffer.position, buffer.waiting, buffer.seed) == before
        rest = n + len(model.queue)
        assert buffer.get_samples(rest) == model.get(rest)


def test_a_saved_buffer_says_what_it_is_and_has_no_samples_in_it(tmp_path: Path) -> None:
    buffer = DataBuffer(make_samples(5), seed=3)
    buffer.add(buffer.get_prompts(7)[6:])
    path = tmp_path / "deep" / "buffer.json"
    buffer.save(path)
    stored = json.loads(path.read_text())
    assert (stored["format"], stored["version"]) == ("heldout.buffer", 1)
    assert (stored["seed"], stored["epoch"], stored["position"]) == (3, 1, 2)
    assert len(stored["waiting"]) == 1
    assert "what is" not in path.read_text()
    assert [p.name for p in path.parent.iterdir()] == ["buffer.json"]


def test_a_buffer_that_cannot_be_written_leaves_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer, path = DataBuffer(make_samples(5)), tmp_path / "buffer.json"
    buffer.save(path)
    before = path.read_bytes()
    buffer.get_prompts(3)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(RunDirectoryError, match="No space left"):
            buffer.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def changed(**fields: Any) -> list[Sample]:
    samples = make_samples(5)
    return [*samples[:4], replace(samples[4], **fields)]


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        (make_samples(6), "there were 5, and now there are 6"),
        (changed(id="other"), "their ids are others"),
        (changed(input={"question": "why?"}), "some input, ground truth or metadata is another"),
        (changed(metadata={}), "some input, ground truth or metadata is another"),
    ],
)
def test_other_samples_are_refused_with_what_is_different(
    samples: list[Sample], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "buffer.json"
    DataBuffer(make_samples(5)).save(path)
    with pytest.raises(ResumeMismatch, match=said) as caught:
        DataBuffer.load(path, samples)
    assert str(path) in str(caught.value)


def test_another_order_of_the_samples_matters_only_where_they_are_not_shuffled(
    tmp_path: Path,
) -> None:
    samples = make_samples(5)
    for shuffle in (True, False):
        DataBuffer(samples, shuffle=shuffle).save(tmp_path / f"{shuffle}")
    loaded = DataBuffer.load(tmp_path / "True", samples[::-1])
    assert loaded.get_prompts(9) == DataBuffer(samples).get_prompts(9)
    with pytest.raises(ResumeMismatch, match="in another order"):
        DataBuffer.load(tmp_path / "False", samples[::-1])


def test_what_json_has_no_words_for_in_a_sample_keeps_nothing_from_being_saved(
    tmp_path: Path,
) -> None:
    for number, odd in enumerate([object(), {(1, 2): 3}, "\ud800", {1, "a"}, 3**99]):
        samples = [Sample("a", {"question": "?", "odd": odd}, odd, {"odd": odd})]
        buffer = DataBuffer(samples, held_out=make_samples(2))
        buffer.add(buffer.get_prompts(1))
        path = tmp_path / f"{number}.json"
        buffer.save(path)
        assert DataBuffer.load(path, samples).get_prompts(2) == [*samples, *samples]


def damage(**fields: Any) -> Callable[[bytes], bytes]:
    return lambda raw: json.dumps({**json.loads(raw), **fields}).encode()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: raw[: len(raw) // 2],
        lambda raw: b"\xff\xfe" + raw,
        lambda raw: b"[" * 100_000,
        lambda raw: b"{}",
        damage(position=-1),
        damage(epoch=-1),
        damage(seed=-4),
        damage(waiting=[{"metadata": {}}]),
        damage(waiting=[{"id": "s0", "others": [None]}]),
        damage(waiting=[{"id": "another"}]),
        damage(samples_per_prompt=0),
    ],
)
def test_a_damaged_file_is_refused_by_name(spoil: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "buffer.json"
    DataBuffer(make_samples(5)).save(path)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(RunDirectoryError, match="buffer.json cannot be read: "):
        DataBuffer.load(path, make_samples(5))


@pytest.mark.parametrize(
    ("header", "hint"),
    [
        ({"version": 2}, "up to version 1. It was written by a newer heldout: upgrade to read it$"),
        ({"format": "heldout.run", "version": 2}, "That is another kind of file"),
        ({"version": 0}, "up to version 1$"),
    ],
)
def test_a_file_of_another_kind_or_version_is_refused(
    header: dict[str, Any], hint: str, tmp_path: Path
) -> None:
    path = tmp_path / "buffer.json"
    DataBuffer(make_samples(5)).save(path)
    path.write_bytes(damage(**header)(path.read_bytes()))
    with pytest.raises(UnknownFormat, match="reads 'heldout.buffer' up to version 1") as caught:
        DataBuffer.load(path, make_samples(5))
    assert re.search(hint, str(caught.value))


def test_a_saved_buffer_may_be_reached_by_a_link(tmp_path: Path) -> None:
    samples = [Sample(f"s{i}", {}) for i in range(4)]
    DataBuffer(samples, 0).save(tmp_path / "buffer-100.json")
    (tmp_path / "latest.json").symlink_to("buffer-100.json")
    assert DataBuffer.load(tmp_path / "latest.json", samples).epoch == 0


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="there is no buffer at .*none.json"):
        DataBuffer.load(tmp_path / "none.json", make_samples(5))
    with pytest.raises(RunDirectoryError, match="is not an ordinary file"):
        DataBuffer.load(tmp_path, make_samples(5))
