"""Scripts as Ray jobs: their output, exit codes, GPUs, and their run directories back home."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from heldout import EvalReport
from heldout.cluster import run_remote
from heldout.cluster.job import CONTENT, END, find_runs, list_run, pack, run
from heldout.cluster.remote import INSIDE_JOB, Receiver, choose_local_gpu
from heldout.errors import EvalFailed, InvalidInput
from tests.cluster.conftest import NODE, free_port, starting_ray

ROOT = Path(__file__).parents[2]

SCRIPT = """
import asyncio, os, sys
import numbers_of
from heldout import EvalConfig, Metric, Sample, Score, evaluate
from heldout.cluster import run_remote


async def answer(messages):
    if "--hang" in sys.argv:
        number = int(messages[-1].text.split()[-1])
        if number >= 5:
            await asyncio.sleep(600)
    return messages[-1].text.split()[-1]


def score(trajectory, sample):
    return Score((Metric("correct", trajectory.answer == sample.ground_truth, weight=1.0),))


if __name__ == "__main__":
    address, gpu = os.environ.get("TEST_ADDRESS"), os.environ.get("TEST_GPU")
    run_remote(__file__, address=address, gpu_id=gpu)
    numbers = numbers_of.numbers(20)
    samples = [Sample(f"s{i}", {"question": f"what is {i}"}, str(i)) for i in numbers]
    config = EvalConfig(endpoint=answer, experiment_name="far", resume="--resume" in sys.argv)
    print("running", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
    report = asyncio.run(evaluate(samples, config, score))
    print("mean", report.summary["mean"])
    sys.exit(3)
"""


@pytest.fixture(scope="module")
def dashboard(_quiet_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster of one node with a GPU, as far as Ray knows, and the address of its dashboard."""
    log = tmp_path_factory.mktemp("ray") / "log"
    # Jobs run the `python` that the path of their node has.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with ExitStack() as stack:
        with starting_ray(), log.open("w") as output:
            port = free_port()
            command = [
                sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block",
                f"--port={free_port()}", f"--dashboard-port={port}", "--include-dashboard=true",
                f"--dashboard-agent-listen-port={free_port()}",
                f"--ray-client-server-port={free_port()}",
                "--num-cpus=2", "--num-gpus=1", '--resources={"accelerator_type:H100": 1}',
                f"--object-store-memory={NODE['object_store_memory']}",
                f"--temp-dir={os.environ['RAY_TMPDIR']}/ray",
            ]  # fmt: skip
            head = subprocess.Popen(
                command, env={**os.environ, "PATH": path}, stdout=output, stderr=output
            )
            stack.callback(head.wait)
            stack.callback(head.terminate)
            while "Ray runtime started" not in log.read_text():
                assert head.poll() is None, log.read_text()
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "numbers_of.py").write_text("numbers = range\n")
    return tmp_path


def start(home: Path, address: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "script.py", *arguments],
        cwd=home,
        env={**os.environ, "TEST_ADDRESS": address, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.integration
def test_a_script_runs_there_on_a_gpu_and_its_run_comes_home_with_its_exit_code(
    dashboard: str, home: Path
) -> None:
    job = start(home, dashboard, TEST_GPU="h100")
    output, _ = job.communicate()
    assert job.returncode == 3, output
    assert "running 0\n" in output
    assert "mean 1.0\n" in output
    report = EvalReport.load(home / "outputs" / "evals" / "far")
    assert report.summary["n"] == 20
    assert report.status == "complete"


@pytest.mark.integration
def test_ctrl_c_stops_the_script_and_what_it_had_comes_home_to_be_resumed_there(
    dashboard: str, home: Path
) -> None:
    with start(home, dashboard, "--hang") as job:
        assert job.stdout is not None
        for line in job.stdout:
            if line.startswith("running"):
                break
        job.send_signal(signal.SIGINT)
        rest = job.stdout.read()
        assert job.wait() == 130, rest
    report = EvalReport.load(home / "outputs" / "evals" / "far")
    assert report.status != "complete"
    begun = len(report.results)
    assert begun <= 5
    resumed = start(home, dashboard, "--resume")
    output, _ = resumed.communicate()
    assert resumed.returncode == 3, output
    report = EvalReport.load(home / "outputs" / "evals" / "far")
    assert (report.summary["n"], report.status) == (20, "complete")
    lines = (home / "outputs" / "evals" / "far" / "results.jsonl").read_text().splitlines()[1:]
    assert len({json.loads(line)["sample"]["id"] for line in lines}) == len(lines) == 20


@pytest.mark.integration
def test_a_gpu_that_the_cluster_does_not_have_is_refused_with_what_it_has(
    dashboard: str, home: Path
) -> None:
    with pytest.raises(
        InvalidInput, match=r"no such GPU.*GPUs on .*\(1\); accelerator types: H100"
    ):
        run_remote(home / "script.py", address=dashboard, gpu_id="tpu-v9")


# --- Without a cluster --------------------------------------------------------------------------


def test_a_script_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no_such.py is none"):
        run_remote(tmp_path / "no_such.py")


def test_an_address_without_a_dashboard_is_refused(home: Path) -> None:
    with pytest.raises(InvalidInput, match="no Ray dashboard at http://127.0.0.1:1: .*refused"):
        run_remote(home / "script.py", address="127.0.0.1:1")


def test_inside_of_a_job_it_does_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INSIDE_JOB, "1")
    assert run_remote(home / "script.py") is None  # type: ignore[func-returns-value]


def test_a_number_is_a_gpu_of_this_machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    run_remote(home / "script.py", gpu_id="2")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2"
    with pytest.raises(InvalidInput, match="there is no GPU 3"):
        choose_local_gpu(3)


# --- The transfer -------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A job that has left a run directory."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "node"))
    (tmp_path / "node").mkdir()
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    code = (
        "import os, pathlib; run = pathlib.Path('outputs/a'); (run / 'steps').mkdir(parents=True);"
        "(run / 'run.json').write_bytes(b'{}'); (run / 'steps' / 'x').write_bytes(os.urandom(99));"
        "(run / 'results.jsonl').write_bytes(os.urandom(100_000)); raise SystemExit(5)"
    )
    assert run("job1", [sys.executable, "-c", code]) == 5
    return "job1"


def test_run_directories_arrive_as_they_were_sent(job: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    receiver = Receiver(home)
    for line in ["what Ray says", *pack(job)]:
        assert len(line) < 20_000
        receiver.take(line)
    receiver.unpack()
    work = next((tmp_path / "node").glob("*")) / "work"
    assert [r.relative_to(work) for r in find_runs(work)] == [Path("outputs/a")]
    names = [file.relative_to(work) for file in list_run(work / "outputs" / "a")]
    assert (names[0].name, names[-1].name) == ("results.jsonl", "run.json")
    for name in names:
        assert (home / name).read_bytes() == (work / name).read_bytes()


@pytest.mark.parametrize("part", [slice(None, -1), slice(1, None)], ids=["no end", "no start"])
def test_a_transfer_that_is_not_whole_is_refused(job: str, part: slice, tmp_path: Path) -> None:
    receiver = Receiver(tmp_path)
    for line in list(pack(job))[part]:
        receiver.take(line)
    with pytest.raises(EvalFailed, match="broke off"):
        receiver.unpack()


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x"])
def test_no_file_arrives_outside_of_the_folder(path: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(path, "content")
    receiver = Receiver(home)
    receiver.take(CONTENT + base64.b64encode(content.getvalue()).decode())
    receiver.take(END + hashlib.sha256(content.getvalue()).hexdigest())
    receiver.unpack()
    assert [file.parent.resolve() for file in tmp_path.rglob("x")] in ([home], [home / "a"])
