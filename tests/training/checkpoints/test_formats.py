"""Layouts of trainers: found, checked for what is missing, converted, hashed; others refused."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
import torch

from heldout._live.weights import fingerprint
from heldout.errors import EvalFailed, InvalidInput
from heldout.training.checkpoints import commands
from heldout.training.checkpoints.converting import (
    empty_folder,
    explain_cut,
    hash_weights,
    make_loadable,
)
from heldout.training.checkpoints.finding import (
    Checkpoint,
    check_pattern,
    explain_unfinished,
    find_checkpoints,
    read_state,
)
from heldout.training.checkpoints.formats import (
    UnreadableCheckpoint,
    Weights,
    check_readable,
    explain_incomplete,
    locate_weights,
)
from tests.processes import wait_until_ended
from tests.tolerances import assert_close
from tests.training.checkpoints import saved


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved.save(tmp_path_factory.mktemp("base") / "base", seed=99)


def located(folder: Path) -> Weights:
    weights = locate_weights(folder)
    assert weights is not None
    return weights


@pytest.mark.parametrize("name", saved.WHOLE_MODELS)
def test_a_checkpoint_is_loaded_with_the_hash_of_the_model_in_memory(
    name: str, base: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    saved.WHOLE_MODELS[name](tmp_path / "checkpoint", 3)
    weights = located(tmp_path / "checkpoint")
    assert explain_incomplete(weights) is None
    check_readable(name, weights, str(base))
    with empty_folder(tmp_path / "out") as out:
        folder = make_loadable(weights, out, base=str(base), merge=False)
        live = fingerprint(saved.model_of(3))
        assert hash_weights(weights, folder, str(base)) == live
        assert fingerprint(AutoModelForCausalLM.from_pretrained(folder)) == live
        assert AutoTokenizer.from_pretrained(folder).chat_template


def test_the_hash_is_of_the_file_that_is_loaded(tmp_path: Path) -> None:
    saved.save(tmp_path, 3)
    (tmp_path / "model.safetensors").rename(tmp_path / "value_head.safetensors")
    torch.save(saved.model_of(4).state_dict(), tmp_path / "pytorch_model.bin")
    assert hash_weights(located(tmp_path), tmp_path, None) == fingerprint(saved.model_of(4))


def test_tied_weights_are_saved_once_and_hashed_as_in_memory(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = saved.model_of(0).config.to_dict() | {"tie_word_embeddings": True}
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.save_pretrained(tmp_path)
    assert hash_weights(located(tmp_path), tmp_path, None) == fingerprint(model)


@pytest.mark.parametrize("merge", [False, True])
def test_an_adapter_is_loaded_on_its_base(merge: bool, base: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    saved.save_adapter(tmp_path / "adapter", 1, base)
    ids = torch.arange(4)[None]
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapter"
    )
    saved.edit_json(tmp_path / "adapter" / "adapter_config.json", base_model_name_or_path="gone")
    weights = located(tmp_path / "adapter")
    assert (weights.format, explain_incomplete(weights)) == ("adapter", None)
    hashes = {hash_weights(weights, tmp_path, named) for named in (str(base), str(base), "other")}
    assert len(hashes) == 2
    with empty_folder(tmp_path / "out") as out:
        folder = make_loadable(weights, out, base=str(base), merge=merge)
        loaded = AutoModelForCausalLM.from_pretrained(folder)
        with torch.no_grad():
            assert_close(loaded(ids).logits, model(ids).logits)


# --- Is it whole? --------------------------------------------------------------------------------


def cut(path: Path, by: int = 10) -> None:
    os.truncate(path, path.stat().st_size - by)


@pytest.mark.parametrize(
    ("save", "damage", "reason"),
    [
        (saved.save, lambda f: cut(f / "model.safetensors"), "model.safetensors has"),
        (saved.save, lambda f: os.truncate(f / "model.safetensors", 4), "is empty"),
        (saved.save, lambda f: os.truncate(f / "model.safetensors", 30), "of at least"),
        (saved.save, lambda f: cut(f / "config.json"), "JSONDecodeError"),
        (saved.save_bin, lambda f: cut(f / "pytorch_model.bin", 100), "pytorch_model.bin is cut"),
        (
            lambda f, seed: saved.save(f, seed, max_shard_size="20KB"),
            lambda f: (f / "model-00002-of-00006.safetensors").unlink(),
            "model-00002-of-00006.safetensors is missing",
        ),
        (
            saved.save_shards,
            lambda f: (f / "model-00002-of-00006.safetensors").unlink(),
            "there are 5 of 6 shards",
        ),
        (
            saved.save_fsdp,
            lambda f: (f / "pytorch_model_fsdp_0" / ".metadata").unlink(),
            "no .metadata yet",
        ),
    ],
)
def test_what_is_missing_of_a_checkpoint_is_named(
    save: Callable[[Path, int], object],
    damage: Callable[[Path], object],
    reason: str,
    tmp_path: Path,
) -> None:
    save(tmp_path, 0)
    assert explain_incomplete(located(tmp_path)) is None
    damage(tmp_path)
    assert reason in str(explain_incomplete(located(tmp_path)))


def test_a_cut_file_of_a_distributed_checkpoint_is_named(tmp_path: Path) -> None:
    saved.save_fsdp(tmp_path, 0)
    folder = tmp_path / "pytorch_model_fsdp_0"
    assert explain_cut(folder) is None
    cut(folder / "__0_0.distcp", 5000)
    assert "__0_0.distcp has" in str(explain_cut(folder))


def test_metadata_that_could_run_code_is_not_loaded(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    (tmp_path / ".metadata").write_bytes(pickle.dumps(SimpleNamespace(storage_data=Evil())))
    with pytest.raises(UnreadableCheckpoint, match="it could run code"):
        explain_cut(tmp_path)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(UnreadableCheckpoint, match="posix.mkdir"):
        explain_cut(tmp_path)
    assert not (tmp_path / "ran").exists()


# --- Can it be read? -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (["actor/model_world_size_1_rank_0.pt"], "verl's own merger reads, and verl is not"),
        (["zero_pp_rank_0_mp_rank_00_model_states.pt"], "DeepSpeed's shards"),
        (["policy/weights/iter_0000000/common.pt"], "Megatron's shards"),
        (["__0_0.distcp", ".metadata"], "a torch.distributed checkpoint; --base names the model"),
        (["model.safetensors"], "weights without a config; --base names the model"),
        (["config.json", "model.safetensors"], "has no tokenizer; --base names the model"),
        (["adapter_config.json"], "does not name its base: --base"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    files: list[str], reason: str, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    with pytest.raises(UnreadableCheckpoint, match=reason):
        check_readable("step_1", located(tmp_path), None)


def test_tensors_of_another_model_are_refused_by_name(base: Path, tmp_path: Path) -> None:
    saved.save_distributed(tmp_path, {"tok_embeddings.weight": torch.zeros(2, 2)})
    with (
        empty_folder(tmp_path / "out") as out,
        pytest.raises(UnreadableCheckpoint, match=r"such as tok_embeddings\.weight.*--convert"),
    ):
        make_loadable(located(tmp_path), out, base=str(base), merge=False)


def test_a_checkpoint_without_weights_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text("{}")
    assert locate_weights(tmp_path) is None


# --- Names ---------------------------------------------------------------------------------------


def test_checkpoints_are_found_by_the_names_that_trainers_give(tmp_path: Path) -> None:
    for name in (
        *("checkpoint-100", "global_step_20", "step_3", "step-40", "iter_0000005", "global_step6"),
        *("tmp_step_7", "checkpoint-8.tmp", "checkpoint-last", "step_9x", "epoch_1/step_10"),
    ):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "checkpoint-11").write_text("a file")
    found = find_checkpoints(tmp_path)
    assert [checkpoint.step for checkpoint in found] == [3, 5, 6, 20, 40, 100]
    own = find_checkpoints(tmp_path, [check_pattern("epoch_*/step_{step}")])
    assert [(c.step, c.name) for c in own] == [(10, "step_10")]
    assert [c.step for c in find_checkpoints(tmp_path, [check_pattern("step_*")])] == [3]
    (tmp_path / "step_100").mkdir()
    with pytest.raises(InvalidInput, match="are both of step 100"):
        find_checkpoints(tmp_path)


@pytest.mark.parametrize("pattern", ["", "/abs/{step}", "../{step}", "a*/b*", "{step}/{step}", "x"])
def test_a_pattern_that_does_not_say_where_the_step_is_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidInput, match="a pattern"):
        check_pattern(pattern)


def test_temporary_files_and_the_trainers_own_note_say_that_it_is_being_written(
    tmp_path: Path,
) -> None:
    path = tmp_path / "global_step_20"
    path.mkdir()
    checkpoint = Checkpoint(20, path)

    def reason() -> str | None:
        state = read_state(path)
        assert state is not None
        return explain_unfinished(checkpoint, state, tmp_path)

    (path / "chat_template.jinja").touch()
    assert reason() is None
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("10")
    assert reason() == "latest_checkpointed_iteration.txt names step 10 as the last that is whole"
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("20")
    assert reason() is None
    for name in (".metadata.tmp", "tmp_model.bin", "model.safetensors.incomplete"):
        (path / name).touch()
        assert reason() == f"{name} is a temporary file"
        (path / name).unlink()
    (path / "latest").symlink_to("gone")  # no reason to overlook the checkpoint
    assert reason() is None
    assert read_state(tmp_path / "gone") is None


# --- Commands ------------------------------------------------------------------------------------


def test_a_command_names_its_placeholders() -> None:
    assert commands.split_command("cp -r {path} '{out}'", "convert", "{path}", "{out}")
    for command in ("", "'open", "cp {path}"):
        with pytest.raises(InvalidInput, match="convert"):
            commands.split_command(command, "convert", "{path}", "{out}")
    words = commands.fill_in(["--x={path}", '{"a": 1}'], path="/p")
    assert words == ["--x=/p", '{"a": 1}']


def test_a_command_that_fails_says_what_it_printed_last(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    with pytest.raises(EvalFailed, match=r"ended with exit code 3: no such model \(.*x\.log\)"):
        commands.convert(["sh", "-c", "echo no such model >&2; exit 3"], log)
    with pytest.raises(EvalFailed, match=r"cannot be started: No such file"):
        commands.convert([str(tmp_path / "nothing")], log)
    with (
        pytest.raises(EvalFailed, match="the server ended with exit code 1: out of memory"),
        commands.serve(["sh", "-c", "echo out of memory; exit 1"], commands.free_port(), log, 60),
    ):
        pass


def test_a_converter_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "CONVERT_SECONDS", 0.5)
    with pytest.raises(EvalFailed, match=r"sleep 600 did not end within 0.5 s: it printed nothing"):
        commands.convert(["sleep", "600"], tmp_path / "log")


def test_a_server_of_others_that_answers_at_the_port_is_not_believed(tmp_path: Path) -> None:
    other = HTTPServer(("127.0.0.1", 0), _OtherServer)
    Thread(target=other.serve_forever, daemon=True).start()
    try:
        command = f"echo $$ > {tmp_path}/pid; echo address in use; exit 1"
        with (
            pytest.raises(EvalFailed, match="ended with exit code 1: address in use"),
            commands.serve(["sh", "-c", command], other.server_port, tmp_path / "log", 60),
        ):
            wait_until_ended(number_in(tmp_path / "pid"))
    finally:
        other.shutdown()
        other.server_close()


def number_in(file: Path) -> int:
    """Return the number that a process writes into a file, once its line is whole."""
    while not (file.exists() and file.read_text().endswith("\n")):
        time.sleep(0.01)
    return int(file.read_text())


class _OtherServer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        content = b'{"data": [{"id": "another"}]}'
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass
