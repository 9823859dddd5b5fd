"""A checkpoint as a folder that transformers loads, and the hash of its weights.

Conversions are those of torch, transformers, peft and verl. No pickle is trusted: tensors are read
with torch's `weights_only`, and the metadata of a torch.distributed checkpoint, which is a pickle
of a few plain classes, by an unpickler that knows these and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from heldout._live.weights import fingerprint
from heldout.errors import EvalFailed
from heldout.models.local import version_on_disk
from heldout.training.checkpoints.commands import convert
from heldout.training.checkpoints.formats import (
    ADAPTER_FILES,
    UnreadableCheckpoint,
    Weights,
    read_base,
    read_header,
)

log = logging.getLogger("heldout")


def make_loadable(weights: Weights, out: Path, *, base: str | None, merge: bool) -> Path:
    """Return a folder that transformers loads the weights from.

    Args:
        weights: The weights of a checkpoint, whole and readable.
        out: An empty folder, used where the checkpoint is not such a folder itself.
        base: The model that it was trained from, if the user named one.
        merge: Whether an adapter is merged into its base, since only transformers loads adapters.

    Raises:
        UnreadableCheckpoint: The names of its tensors are not those of the model.
        EvalFailed: A converter fails.
    """
    base = read_base(weights, base)
    if weights.format == "verl":
        _merge_verl(weights, out)
        return out
    if weights.format == "distributed":
        _convert_distributed(weights, out, base)
    elif weights.format == "adapter" and merge:
        _merge_adapter(weights, out, base)
    elif weights.format in ("adapter", "shards") or weights.tokenizer != weights.path:
        _link_files(weights.path, out)
        if weights.format == "adapter":
            _name_base(out, base)
        else:
            _add_config(weights, out, base)
    else:
        return weights.path
    _add_tokenizer(weights, out, base)
    return out


# --- Parts of a folder ---------------------------------------------------------------------------


def _link_files(source: Path, out: Path) -> None:
    for path in source.iterdir():
        if path.is_file():
            (out / path.name).symlink_to(path.resolve())


def _name_base(out: Path, base: str | None) -> None:
    """Have an adapter's config name the base that is to be used."""
    path = out / "adapter_config.json"
    config = json.loads(path.read_bytes())
    path.unlink()  # the link
    path.write_text(json.dumps({**config, "base_model_name_or_path": base}))


def _add_config(weights: Weights, out: Path, base: str | None) -> None:
    """Add the config of the model, and an index of shards, where they are missing."""
    from transformers import AutoConfig

    if not (out / "config.json").exists():
        AutoConfig.from_pretrained(str(weights.config or base)).save_pretrained(out)
    index = out / "model.safetensors.index.json"
    if index.exists() or (out / "model.safetensors").exists() or weights.format != "shards":
        return
    names: dict[str, str] = {}
    for path in sorted(out.glob("*.safetensors")):
        names |= {name: path.name for name in read_header(path) if name != "__metadata__"}
    index.write_text(json.dumps({"metadata": {}, "weight_map": names}))


def _add_tokenizer(weights: Weights, out: Path, base: str | None) -> None:
    from transformers import AutoTokenizer

    if not any((out / name).exists() for name in ("tokenizer_config.json", "tokenizer.json")):
        AutoTokenizer.from_pretrained(str(weights.tokenizer or base)).save_pretrained(out)


def _merge_adapter(weights: Weights, out: Path, base: str | None) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    PeftModel.from_pretrained(model, str(weights.path)).merge_and_unload().save_pretrained(out)


def _merge_verl(weights: Weights, out: Path) -> None:
    """Run verl's own merger, with torch told to load nothing but weights."""
    words = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    words += ["--local_dir", str(weights.path), "--target_dir", str(out)]
    log = out.parent.with_suffix(".log")
    convert(words, log, {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1"})


# --- The base of an adapter ----------------------------------------------------------------------


def check_base(weights: Weights, base: str | None) -> None:
    """Check that an adapter is put on the model that its own config names, if both are here.

    Raises:
        UnreadableCheckpoint: The user named a base with other weights.
    """
    named = read_base(weights, None) if weights.format == "adapter" else None
    if base is None or named is None or named == base:
        return
    own, given = _hash_base(named), _hash_base(base)
    if own is None or given is None:
        _warn_of_other_base(named, base)
    elif own != given:
        raise UnreadableCheckpoint(
            f"{weights.path.name} is an adapter of {named}, as its adapter_config.json says, and "
            f"{base} has other weights. Leave out --base; if the config is wrong, correct "
            "base_model_name_or_path in it"
        )


def _hash_base(source: str) -> str | None:
    """Hash the weights of a model in a folder or the hub's cache; None if it is not here."""
    from transformers.utils import cached_file

    folder = Path(source)
    if not folder.is_dir():
        try:
            folder = Path(cached_file(source, "config.json", local_files_only=True)).parent
        except (OSError, ValueError):
            return None
    return _hash_folder(folder, version_on_disk(str(folder)))


@lru_cache(8)
def _hash_folder(folder: Path, version: str | None) -> str | None:
    tensors = dict(_read_tensors(folder, "model.safetensors", "pytorch_model.bin"))
    return fingerprint(tensors) if tensors else None


@cache
def _warn_of_other_base(named: str, base: str) -> None:
    log.warning(
        "adapter_config.json names %s as the base, and it is put on %s. Whether these are the same "
        "weights cannot be checked here",
        named,
        base,
    )


# --- torch.distributed.checkpoint ----------------------------------------------------------------


_METADATA_CLASSES = {
    "torch.distributed.checkpoint.metadata": {
        *("Metadata", "MetadataIndex", "StorageMeta", "ChunkStorageMetadata"),
        *("TensorProperties", "TensorStorageMetadata", "BytesStorageMetadata"),
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed._shard.sharded_tensor.metadata": {"TensorProperties", "MEM_FORMAT_ENCODING"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", "float32", "float16", "bfloat16", "float64", "int64", "int32", "int16"}
    | {"int8", "uint8", "bool", "float8_e4m3fn", "float8_e5m2", "strided", "complex64"},
    "collections": {"OrderedDict"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
}
"""All that the metadata of a torch.distributed checkpoint is made of."""


class _MetadataUnpickler(pickle.Unpickler):
    """Reads the metadata of a checkpoint, and refuses any other class."""

    def find_class(self, module: str, name: str) -> Any:
        if name not in _METADATA_CLASSES.get(module, ()):
            raise UnreadableCheckpoint(
                f".metadata holds a {module}.{name}, which no such checkpoint has; it is not "
                "loaded, since it could run code"
            )
        return super().find_class(module, name)


def open_distributed(folder: Path) -> Any:
    """Open a torch.distributed checkpoint; return torch's reader of it."""
    from torch.distributed.checkpoint import FileSystemReader, HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import StorageMeta

    if not (folder / ".metadata").exists():
        return HuggingFaceStorageReader(str(folder))

    class SafeReader(FileSystemReader):  # type: ignore[misc]
        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            with (folder / ".metadata").open("rb") as file:
                metadata = _MetadataUnpickler(file).load()
            if getattr(metadata, "storage_meta", None) is None:
                metadata.storage_meta = StorageMeta()
            metadata.storage_meta.load_id = self.load_id
            return metadata

    return SafeReader(folder)


def explain_cut(folder: Path) -> str | None:
    """Say which file of a torch.distributed checkpoint is missing or cut; None if none is."""
    if not (folder / ".metadata").exists():
        return None  # shards of safetensors, which are checked as such
    ends: dict[str, int] = {}
    for info in open_distributed(folder).read_metadata().storage_data.values():
        ends[info.relative_path] = max(ends.get(info.relative_path, 0), info.offset + info.length)
    for name, end in ends.items():
        path = folder / Path(name).name
        if not path.exists():
            return f"{name} is missing"
        if path.stat().st_size < end:
            return f"{name} has {path.stat().st_size} of {end} bytes"
    return None


def _convert_distributed(weights: Weights, out: Path, base: str | None) -> None:
    """Read the model's tensors into an empty model of its config, which transformers saves."""
    import torch
    import torch.distributed.checkpoint as distributed
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from transformers import AutoConfig, AutoModelForCausalLM

    reader = open_distributed(weights.path)
    stored = {
        name: entry
        for name, entry in reader.read_metadata().state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    config = AutoConfig.from_pretrained(str(weights.config or base))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    tensors = model.state_dict(keep_vars=True)
    prefix = _find_prefix(tensors, stored, weights, base)
    wanted = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name in tensors
        if (entry := stored.get(prefix + name)) is not None
    }
    for name, tensor in wanted.items():
        if tensor.shape != tensors[name].shape:
            raise UnreadableCheckpoint(
                f"{weights.path}: {prefix + name} has the shape {list(tensor.shape)}, and that of "
                f"{weights.config or base} {list(tensors[name].shape)}"
            )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as it is meant to be
        distributed.load(
            {prefix + name: tensor for name, tensor in wanted.items()},
            storage_reader=reader,
            no_dist=True,
        )
    model.load_state_dict(wanted, strict=False, assign=True)
    model.tie_weights()
    model.save_pretrained(out)


def _find_prefix(
    tensors: dict[str, Any], stored: Iterable[str], weights: Weights, base: str | None
) -> str:
    """Find what trainers put before the names of a model's tensors: `model.`, `app.model.`."""
    names, held = {id(tensor): name for name, tensor in tensors.items()}, set(stored)
    tied: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        tied.setdefault(id(tensor), []).append(name)
    first = next(iter(names.values()))
    prefixes = sorted({name.removesuffix(first) for name in held if name.endswith(first)}, key=len)
    for prefix in prefixes:
        if all(any(prefix + name in held for name in group) for group in tied.values()):
            return prefix
    example = next((name for name in sorted(held) if name.endswith("weight")), "none")
    raise UnreadableCheckpoint(
        f"{weights.path} has other tensors than {weights.config or base}, such as {example}. If "
        "the trainer has its own names (torchtitan), convert its checkpoints: --convert 'CMD "
        "{path} {out}'"
    )


# --- The hash of the weights ---------------------------------------------------------------------


def hash_weights(weights: Weights, folder: Path, base: str | None) -> str:
    """Hash the weights of a checkpoint.

    Of a whole model it is the hash that the model has in memory
    (`heldout._live.weights.fingerprint`), where it was saved in the types it is trained in. Of an
    adapter it covers the adapter, its config and its base.

    Args:
        weights: The weights.
        folder: What `make_loadable` returned for them.
        base: The model that it was trained from, if the user named one.

    Raises:
        EvalFailed: There are no weights to read.
    """
    if weights.format == "adapter":
        config = json.loads((weights.path / "adapter_config.json").read_bytes())
        base = read_base(weights, base)
        parts = [fingerprint(dict(_read_tensors(weights.path, *ADAPTER_FILES)))]
        parts += [json.dumps(config, sort_keys=True), str(base), version_on_disk(str(base))]
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()
    tensors = dict(_read_tensors(folder, "model.safetensors", "pytorch_model.bin"))
    config = json.loads((folder / "config.json").read_bytes())
    ends = [name for name in tensors if name.endswith("embed_tokens.weight")]
    if config.get("tie_word_embeddings", True) and len(ends) == 1:
        tensors.setdefault("lm_head.weight", tensors[ends[0]])  # saved once, and there twice
    result = fingerprint(tensors)
    if result is None:
        raise EvalFailed(f"{folder} has no weights that can be read")
    return result


def _read_tensors(folder: Path, *names: str) -> Iterator[tuple[str, Any]]:
    """Read the tensors of the first of these files that a folder has, mapped into memory."""
    import torch
    from safetensors.torch import load_file

    for path in _loaded_files(folder, names):
        if path.suffix == ".safetensors":
            yield from load_file(path).items()
        else:
            yield from torch.load(path, map_location="cpu", mmap=True, weights_only=True).items()


def _loaded_files(folder: Path, names: Iterable[str]) -> list[Path]:
    """Return what transformers loads: the first of these files, or the shards of its index."""
    for name in names:
        if (folder / name).exists():
            return [folder / name]
        if (index := folder / f"{name}.index.json").exists():
            shards = json.loads(index.read_bytes())["weight_map"].values()
            return [folder / shard for shard in sorted(set(shards))]
    return []


@contextmanager
def empty_folder(path: Path) -> Iterator[Path]:
    """Make an empty folder for a conversion, and remove it afterwards."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
