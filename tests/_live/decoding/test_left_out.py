"""Captured steps are a package that only GPUs need, and the rest of decoding does without."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import heldout._live.decoding as decoding
from tests.test_architecture import imports

CAPTURED = "heldout._live.decoding.captured"
WITHOUT = """
import sys

sys.modules["heldout._live.decoding.captured"] = None  # an import of it fails
from heldout._live.decoding import Decoder
from tests._live.decoding.models import PROMPTS, generated, ids_of, model_of, tokenizer

model = model_of("Llama")
decoder = Decoder(model, tokenizer(), rows=4)
assert ids_of(decoder.decode(PROMPTS)) == generated(model, PROMPTS)
assert decoder.describe()["way"] == "eager"
decoder.release()
"""


def test_a_cpu_decodes_without_it() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], check=True, cwd=Path(__file__).parents[3])


def test_only_the_decoder_imports_it_and_only_its_entry() -> None:
    room = Path(str(decoding.__file__)).parent
    source = room.parents[1]
    users = {
        (path.relative_to(room).as_posix(), name)
        for path in source.rglob("*.py")
        if room / "captured" not in path.parents
        for _, name in imports(ast.parse(path.read_text()))
        if name.startswith(CAPTURED)
    }
    assert users == {("decoder.py", CAPTURED)}
