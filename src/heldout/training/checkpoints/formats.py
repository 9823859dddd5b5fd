"""What a checkpoint holds, what is missing of it, and what is needed to read it.

Trainers keep the weights in different places of a checkpoint. `locate_weights` looks into each, and
names the format. Nothing is loaded here: JSON files are decoded, of safetensors files the header is
read, and of pickles nothing.
"""

from __future__ import annotations

import importlib.util
import json
import struct
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from heldout._core.extras import install_hint
from heldout.errors import InvalidInput

Format = Literal["transformers", "adapter", "shards", "distributed", "verl", "unreadable"]

PLACES = (
    "",
    "actor/huggingface",  # verl with hf_model in save_contents
    "actor/lora_adapter",
    "actor",
    "policy/weights/model/consolidated",  # NeMo-RL
    "policy/weights/model",
    "policy/weights",
    "pytorch_model_fsdp_0",  # transformers and accelerate with FSDP's sharded state dicts
    "trainer",  # prime-rl
)
"""Where trainers keep the weights."""
TOKENIZERS = ("", "../tokenizer", "../../tokenizer", "../../../tokenizer", "huggingface", "..")
"""Where they keep the tokenizer and the config, seen from the weights."""

ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")
"""Where an adapter's weights are: in one of these."""

LONGEST_HEADER = 100_000_000
"""Bytes of a safetensors header, at most: as the format itself has it."""
LONGEST_JSON = 1_000_000_000


class UnreadableCheckpoint(InvalidInput):
    """A checkpoint is in a format that cannot be read, or something to read it with is missing."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a checkpoint."""

    format: Format
    path: Path
    """The folder that they are in."""
    problem: str = ""
    """Of an unreadable format: its name, and what to do."""
    beside: Path | None = None
    """Where `path` was before it was held (`holding.py`): a tokenizer may lie beside it."""

    @property
    def config(self) -> Path | None:
        """The folder with the model's config, if the checkpoint has one."""
        return self._find("config.json")

    @property
    def tokenizer(self) -> Path | None:
        """The folder with the tokenizer, if the checkpoint has one."""
        return self._find("tokenizer_config.json") or self._find("tokenizer.json")

    def _find(self, name: str) -> Path | None:
        folders = [self.path, *([self.beside] if self.beside is not None else [])]
        places = (folder / place for folder in folders for place in TOKENIZERS)
        return next((place for place in places if (place / name).is_file()), None)


def locate_weights(checkpoint: Path) -> Weights | None:
    """Find the weights of a checkpoint; None where there are none yet.

    A folder that transformers loads comes first: a trainer may write one beside its own format.
    """
    found = [weights for place in PLACES if (weights := _recognize(checkpoint / place)) is not None]
    order: tuple[Format, ...] = Format.__args__  # type: ignore[attr-defined]
    return min(found, key=lambda weights: order.index(weights.format), default=None)


def _recognize(folder: Path) -> Weights | None:
    """Name the format of the weights in a folder; None if it has none."""
    if not folder.is_dir():
        return None
    names = {path.name for path in folder.iterdir()}
    if "adapter_config.json" in names:
        return Weights("adapter", folder)
    safetensors = [name for name in names if name.endswith(".safetensors")]
    if "config.json" in names and (
        names & {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"}
        or "pytorch_model.bin.index.json" in names
    ):
        return Weights("transformers", folder)
    if ".metadata" in names or any(name.endswith(".distcp") for name in names):
        return Weights("distributed", folder)
    if safetensors and all(name.startswith("shard-") for name in safetensors):
        return Weights("distributed", folder)  # slices of tensors, as torch writes them
    if safetensors or "model.safetensors.index.json" in names:
        return Weights("shards", folder)
    if any(name.startswith("model_world_size_") for name in names):
        return Weights("verl", folder)
    if any(name.endswith("_model_states.pt") for name in names):
        return Weights(
            "unreadable",
            folder,
            "DeepSpeed's shards of a model. Have the trainer save Hugging Face folders too "
            "(OpenRLHF: --save_hf_ckpt), or convert them: --convert 'python {path}/zero_to_fp32.py "
            "…' with the script that DeepSpeed puts beside them",
        )
    if "common.pt" in names or any(name.startswith(("iter_", "mp_rank_")) for name in names):
        return Weights(
            "unreadable",
            folder,
            "Megatron's shards of a model. Convert them with the trainer's own converter: "
            "--convert 'CMD {path} {out}'",
        )
    return None


# --- Is it whole? --------------------------------------------------------------------------------


def explain_incomplete(weights: Weights) -> str | None:
    """Say what is missing of a checkpoint; None if it is whole, as far as its files tell."""
    folder = weights.path
    try:
        for name in ("config.json", "tokenizer_config.json", "tokenizer.json"):
            if (folder / name).exists():
                _read_json(folder / name)
        if weights.format == "adapter":
            _read_json(folder / "adapter_config.json")
            return _check_files(folder, ADAPTER_FILES, one=True)
        if weights.format in ("transformers", "shards"):
            return _check_model(folder)
        if weights.format == "distributed" and not (folder / ".metadata").exists():
            shards = sorted(folder.glob("shard-*.safetensors"))
            return _check_files(folder, [s.name for s in shards]) if shards else "no .metadata yet"
        if weights.format == "verl":
            return _check_verl(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        return f"{type(problem).__name__}: {problem}"[:300]
    return None


def _check_model(folder: Path) -> str | None:
    for suffix, whole in (("safetensors", "model.safetensors"), ("bin", "pytorch_model.bin")):
        index = folder / f"{whole}.index.json"
        if index.exists():
            names = _read_json(index)["weight_map"]
            if missing := _check_files(folder, sorted(set(names.values()))):
                return missing
            if suffix == "safetensors":
                return _check_names(folder, names)
            return None
        if (folder / whole).exists():
            return _check_files(folder, [whole])
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    for name in shards:  # model-00001-of-00003.safetensors
        total = name.removesuffix(".safetensors").rpartition("-of-")[2]
        if total.isdigit() and int(total) != len(shards):
            return f"there are {len(shards)} of {int(total)} shards"
    return _check_files(folder, shards)


def _check_names(folder: Path, names: dict[str, str]) -> str | None:
    held = {file: read_header(folder / file) for file in sorted(set(names.values()))}
    missing = [name for name, file in names.items() if name not in held[file]]
    return f"{names[missing[0]]} lacks {missing[0]}, which the index has" if missing else None


def _check_verl(folder: Path) -> str | None:
    ranks = list(folder.glob("model_world_size_*_rank_*.pt"))
    world = int(ranks[0].name.split("_")[3])
    if len(ranks) != world:
        return f"there are {len(ranks)} of {world} shards"
    return _check_files(folder, sorted(path.name for path in ranks))


def _check_files(folder: Path, names: Sequence[str], *, one: bool = False) -> str | None:
    """Say which of the files is missing or cut; with `one`, any of them will do."""
    present = [name for name in names if (folder / name).exists()]
    if len(present) < (1 if one else len(names)):
        missing = [name for name in names if name not in present]
        return f"{missing[0]} is missing"
    for name in present:
        path = folder / name
        if name.endswith(".safetensors"):
            size = path.stat().st_size
            if (whole := _whole_size(path)) != size:
                return f"{name} has {size} of {whole} bytes"
        elif not zipfile.is_zipfile(path):  # what torch.save writes ends with its directory
            return f"{name} is cut"
    return None


def _whole_size(path: Path) -> int:
    """Compute the size that a safetensors file has when it is whole, from its header."""
    with path.open("rb") as file:
        length = _header_length(file.read(8), path)
    header = read_header(path)
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return 8 + length + max(ends, default=0)


def read_header(path: Path) -> dict[str, Any]:
    """Read the header of a safetensors file: names, types, shapes and offsets of its tensors.

    Raises:
        ValueError: It is cut, or it is none.
    """
    with path.open("rb") as file:
        length = _header_length(file.read(8), path)
        raw = file.read(length)
    if len(raw) < length:
        raise ValueError(f"{path.name} has {8 + len(raw)} of at least {8 + length} bytes")
    header = json.loads(raw)
    if not isinstance(header, dict):
        raise ValueError(f"{path.name} has no safetensors header")
    return header


def _header_length(raw: bytes, path: Path) -> int:
    if len(raw) < 8:
        raise ValueError(f"{path.name} is empty")
    [length] = struct.unpack("<Q", raw)
    if length > LONGEST_HEADER:
        raise ValueError(f"{path.name} is no safetensors file")
    return int(length)


def _read_json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > LONGEST_JSON:
        raise ValueError(f"{path.name} is too large")
    value = json.loads(path.read_bytes())
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return value


# --- Can it be read? -----------------------------------------------------------------------------


def read_base(weights: Weights, base: str | None) -> str | None:
    """Return the name or folder of the model that an adapter was trained on."""
    if base is not None or weights.format != "adapter":
        return base
    named = _read_json(weights.path / "adapter_config.json").get("base_model_name_or_path")
    return named if isinstance(named, str) and named else None


def check_readable(name: str, weights: Weights, base: str | None) -> None:
    """Check that there is all that a format needs.

    Args:
        name: What to call the checkpoint.
        weights: Its weights.
        base: The model that it was trained from, if the user named one.

    Raises:
        UnreadableCheckpoint: Something is missing; it says what.
    """
    format = weights.format
    if format == "unreadable":
        raise UnreadableCheckpoint(f"{name} holds {weights.problem}")
    needs = {"adapter": "peft", "verl": "verl"}.get(format)
    if needs is not None and importlib.util.find_spec(needs) is None:
        if format == "verl":
            raise UnreadableCheckpoint(
                f"{name} holds verl's FSDP shards, which verl's own merger reads, and verl is not "
                "installed here. Install it, or have training save Hugging Face folders: "
                "actor_rollout_ref.actor.checkpoint.save_contents="
                "['model','optimizer','extra','hf_model']"
            )
        raise UnreadableCheckpoint(f"{name} is a PEFT adapter, and peft is not installed here")
    base = read_base(weights, base)
    if format == "adapter" and base is None:
        raise UnreadableCheckpoint(f"{name} is a PEFT adapter that does not name its base: --base")
    if format in ("shards", "distributed") and weights.config is None and base is None:
        what = (
            "weights without a config" if format == "shards" else "a torch.distributed checkpoint"
        )
        raise UnreadableCheckpoint(
            f"{name} holds {what}; --base names the model that it was trained from, for its config "
            "and tokenizer"
        )
    if weights.tokenizer is None and base is None:
        raise UnreadableCheckpoint(
            f"{name} has no tokenizer; --base names the model that has it, or have the trainer "
            "save it (processing_class=tokenizer)"
        )
    if (
        importlib.util.find_spec("transformers") is None
        or importlib.util.find_spec("torch") is None
    ):
        raise UnreadableCheckpoint(
            f"reading {name} needs torch and transformers: {install_hint('local')}"
        )
