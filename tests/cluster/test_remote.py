"""Scripts as Ray jobs: their output, exit codes, GPUs, and their run directories back home."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from heldout import EvalReport
from heldout.cluster import run_remote
from heldout.cluster.job import CONTENT, END, STDOUT, find_runs, list_run, pack, run
from heldout.cluster.remote import (
    INSIDE_JOB,
    LOCAL,
    Receiver,
    _RemoteJob,
    choose_local_gpu,
    drop_own_options,
)
from heldout.errors import EvalFailed, InvalidInput
from tests.cluster.conftest import NODE, free_port, starting_ray

ROOT = Path(__file__).parents[2]

SCRIPT = """
import asyncio, os, sys
import numbers_of
from heldout import EvalConfig, Metric, Sample, Score, evaluate
from heldout.cluster import run_remote


async def answer(messages):
    while "GO" in os.environ and not os.path.exists(os.environ["GO"]):
        await asyncio.sleep(0.05)
    if "--hang" in sys.argv:
        number = int(messages[-1].text.split()[-1])
        if number >= 5:
            await asyncio.sleep(600)
    return messages[-1].text.split()[-1]


def score(trajectory, sample):
    return Score((Metric("correct", trajectory.answer == sample.ground_truth, weight=1.0),))


if __name__ == "__main__":
    address, gpu = os.environ.get("TEST_ADDRESS"), os.environ.get("TEST_GPU")
    environment = {"GO": os.environ["GO"]} if "GO" in os.environ else None
    run_remote(__file__, address=address, gpu_id=gpu, environment=environment)
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


class Proxy:
    """Stands between a script and the dashboard, and can break all connections at once."""

    def __init__(self, target: str) -> None:
        self._target = ("127.0.0.1", int(target.rpartition(":")[2]))
        self._open: list[socket.socket] = []
        self._refusals = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def break_connections(self, refusals: int) -> None:
        """Break the connections that there are, and the next so many."""
        self._refusals = refusals
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.break_connections(0)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                if self._refusals:
                    self._refusals -= 1
                    near.close()
                    continue
                far = socket.create_connection(self._target)
                self._open += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=(one, other), daemon=True).start()

    def _copy(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)


@pytest.mark.heavy
@pytest.mark.integration
def test_a_script_runs_there_on_a_gpu_through_a_dropped_connection_and_its_run_comes_home(
    dashboard: str, home: Path
) -> None:
    proxy = Proxy(dashboard)
    with start(home, proxy.address, GO=str(home / "go"), TEST_GPU="h100") as job:
        begun = "".join(iter(job.stdout.readline, "running 0\n"))
        proxy.break_connections(refusals=4)
        (home / "go").touch()
        rest = job.stdout.read()
        assert job.wait() == 3, begun + rest
    proxy.close()
    assert "running 0\n" not in rest, "what was shown is shown again"
    assert "mean 1.0\n" in rest
    report = EvalReport.load(home / "outputs" / "evals" / "far")
    assert (report.summary["n"], report.status) == (20, "complete")


@pytest.mark.heavy
@pytest.mark.integration
def test_ctrl_c_stops_the_script_and_what_it_had_comes_home_to_be_resumed_there(
    dashboard: str, home: Path
) -> None:
    with start(home, dashboard, "--hang") as job:
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


@pytest.mark.heavy
@pytest.mark.integration
def test_a_gpu_that_the_cluster_does_not_have_is_refused_with_what_it_has(
    dashboard: str, home: Path
) -> None:
    with pytest.raises(
        InvalidInput, match=r"no such GPU.*GPUs on .*\(1\); accelerator types: H100"
    ):
        run_remote(home / "script.py", address=dashboard, gpu_id="tpu-v9")


ELSE_SCRIPT = """
import argparse, json, os, sys, time
from pathlib import Path
import heldout
from heldout.cluster import run_remote
from shared.answers import answer, score


def main():
    samples = [heldout.Sample("a", {"question": "2"}, "2")]
    print("a word of the log", file=sys.stderr)
    while not os.path.exists(os.environ["GO"]):
        time.sleep(0.05)
    report = heldout.run(samples, score, endpoint=answer, experiment_name="far")
    print(json.dumps(report.summary["mean"]))


parser = argparse.ArgumentParser()
parser.add_argument("--remote")
parser.add_argument("--json", action="store_true")
args = parser.parse_args()
if args.remote:
    run_remote(
        __file__, address=args.remote, working_dir=Path(__file__).parents[1], keep_alive=True,
        environment={"GO": os.environ["GO"]},
    )
else:
    main()
"""
ANSWERS = """
async def answer(messages):
    return messages[-1].text


def score(trajectory, sample):
    return trajectory.answer == sample.ground_truth
"""


@pytest.mark.heavy
@pytest.mark.integration
def test_a_script_of_a_repository_that_was_left_running_there_is_taken_up_again(
    dashboard: str, tmp_path: Path
) -> None:
    for name, text in (("scripts/script.py", ELSE_SCRIPT), ("shared/answers.py", ANSWERS)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    with subprocess.Popen(
        [sys.executable, "scripts/script.py", "--remote", dashboard, "--json"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
            "GO": str(tmp_path / "go"),
        },
    ) as job:  # fmt: skip
        begun = "".join(iter(job.stderr.readline, "a word of the log\n"))
        job.send_signal(signal.SIGINT)
        said = job.stderr.read()
        assert job.wait() == 130, begun + said
        assert job.stdout.read() == ""
    (tmp_path / "go").touch()
    code = said.partition('python -c "')[2].partition('"')[0]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, said + done.stderr
    assert done.stdout == "1.0\n", "--json has more than the JSON on standard output"
    [run] = find_runs(tmp_path / "outputs")
    assert EvalReport.load(run).summary["mean"] == 1.0


@pytest.mark.heavy
@pytest.mark.integration
def test_heldout_run_remote_json_prints_the_json_alone(dashboard: str, tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(
        f"import sys\nfrom heldout import EvalConfig, Sample\n{ANSWERS}\n"
        "def load_dataset():\n"
        "    print('a word of the log')\n"
        "    return [Sample('a', {'question': '2'}, '2')]\n"
        "score_fn = score\nconfig = EvalConfig(endpoint=answer)\n"
    )
    command = [sys.executable, "-m", "heldout", "run", "sums.py", "--remote", dashboard, "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["mean"] == 1.0
    assert "a word of the log\n" in done.stderr


# The form that docs/cluster.md has, in a project of the usual form.
PROJECT = {
    "pyproject.toml": "[project]\nname = 'toy'\nversion = '0'\n",
    "configs/base.py": "import heldout\nbase_config = heldout.EvalConfig(experiment_name='far')\n",
    "scripts/helper.py": ANSWERS,
    "scripts/script.py": """
import argparse, asyncio, dataclasses, os
import torch

import heldout
from configs.base import base_config
from heldout.cluster import run_remote
from helper import answer, score

torch.cuda.device_count = lambda: int(os.environ.get("GPUS", "0"))
parser = argparse.ArgumentParser()
parser.add_argument("--remote", action="store_true")
parser.add_argument("--gpu-id", "--gpu")
parser.add_argument("-n", type=int, default=1)
args = parser.parse_args()
if args.remote or args.gpu_id:
    run_remote(__file__, gpu_id=args.gpu_id)
else:
    print("sees", os.environ.get("CUDA_VISIBLE_DEVICES"), "from", os.getcwd(), flush=True)
    samples = [heldout.Sample(f"s{i}", {"question": str(i)}, str(i)) for i in range(args.n)]
    config = dataclasses.replace(base_config, endpoint=answer)
    report = asyncio.run(heldout.evaluate(samples, config, score))
    print("n", report.summary["n"])
""",
    "scripts/quiz.py": """
import dataclasses
from configs.base import base_config
from heldout import Sample
from helper import answer, score as score_fn


def load_dataset():
    return [Sample("a", {"question": "2"}, "2")]


config = dataclasses.replace(base_config, endpoint=answer)
""",
    "scripts/settings.toml": "experiment_name = 'from_toml'\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "toy"
    for name, text in PROJECT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def run_in(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a project, whose own packages can be imported as if it was installed."""
    path = os.pathsep.join([str(folder), *sys.path])
    env = {**os.environ, "PYTHONPATH": path, **environment}
    command = (sys.executable, *command)
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.heavy
@pytest.mark.integration
def test_the_project_of_a_script_goes_to_the_cluster_with_it(dashboard: str, project: Path) -> None:
    script = ("scripts/script.py", "--remote", "--gpu-id", "any", "-n", "3")
    done = run_in(project, *script, RAY_API_SERVER_ADDRESS=dashboard)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Sending {project}, where the job runs" in done.stderr
    assert "sees 0 from " in done.stdout
    assert "/work\n" in done.stdout, "it does not run where the project is"
    assert "n 3\n" in done.stdout
    [run] = find_runs(project / "outputs")
    assert EvalReport.load(run).summary["n"] == 3


@pytest.mark.heavy
@pytest.mark.integration
def test_the_project_of_an_eval_file_goes_to_the_cluster_with_it(
    dashboard: str, project: Path
) -> None:
    options = ("--remote", dashboard, "--config", "scripts/settings.toml", "--json")
    done = run_in(project, "-m", "heldout", "run", "scripts/quiz.py", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = find_runs(project / "outputs")
    assert run.parent.name == "from_toml", "the config is that of this machine"
    assert EvalReport.load(run).summary["n"] == 1


# --- Without a cluster --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("--remote http://h:8265 -n 3 --gpu-id any x", "-n 3 x"),
        ("--remote=http://h:8265 --gpu_id=any -v", "-v"),
        ("--remote h -v", "-v"),
        ("--remote data.jsonl", "data.jsonl"),
        ("--cluster http://h:8265 -c=http://h:8265 --other http://x", "--other http://x"),
        ("http://h:8265 --remote", "http://h:8265"),
        ("-n 3 -- --remote", "-n 3 -- --remote"),
        ("--gpu 2 --which-GPU=2 --gpus 2 --seed 2 gpu 2", "--gpus 2 --seed 2 gpu 2"),
        ("--gpu-id 2 --gpu-memory 2", "--gpu-memory 2"),
    ],
)
def test_a_job_does_not_get_the_options_that_say_where_it_runs(words: str, kept: str) -> None:
    assert drop_own_options(words.split(), "http://h:8265", "2") == kept.split()


def test_without_an_address_nothing_is_taken_for_one() -> None:
    assert drop_own_options(["--remote", "-n", "3"], None) == ["-n", "3"]


def test_what_cannot_be_submitted_is_refused(home: Path) -> None:
    (home / "empty").mkdir()
    for script, settings, said in (
        ("script.py", {"working_dir": home / "empty"}, r"script\.py is not in working_dir"),
        ("no_such.py", {}, "no_such.py is none"),
        (
            "script.py",
            {"address": "127.0.0.1:1"},
            "no Ray dashboard at http://127.0.0.1:1: .*refused",
        ),
    ):
        with pytest.raises(InvalidInput, match=said):
            run_remote(home / script, **settings)


def test_giving_up_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def get_address(self) -> str:
            return "http://h:8265"

        def get_job_info(self, name: str) -> None:
            raise ConnectionResetError("gone")

    monkeypatch.setattr("heldout.cluster.remote.GIVE_UP_SECONDS", 0.0)
    with pytest.raises(EvalFailed, match=r"out of reach.*gone.*attach_remote\('far', address='h"):
        _RemoteJob(Gone(), "far").follow()


def test_inside_of_a_job_it_does_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INSIDE_JOB, "1")
    assert run_remote(home / "script.py") is None


def test_a_command_gets_a_gpu_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    choose_local_gpu(2)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2"
    with pytest.raises(InvalidInput, match="there is no GPU 3"):
        choose_local_gpu(3)


@pytest.mark.parametrize(
    "command",
    [
        ("-u", "scripts/script.py", "-n", "3", "--gpu", "1"),
        ("-m", "scripts.script", "-n", "3", "--gpu-id=1"),
    ],
)
def test_the_work_in_an_else_is_reached_on_a_gpu_of_this_machine(
    project: Path, command: tuple[str, ...]
) -> None:
    # Its helper is found beside the script, or, run as a module, on the path.
    (project / "helper.py").write_text(ANSWERS)
    done = run_in(project, *command, GPUS="2", CUDA_VISIBLE_DEVICES="4,6")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "On GPU 1 of this machine: python " in done.stderr
    assert done.stdout.splitlines()[0] == f"sees 6 from {project}"
    assert "n 3\n" in done.stdout
    [run] = find_runs(project / "outputs")
    assert EvalReport.load(run).summary["n"] == 3


def test_a_script_that_comes_back_to_run_remote_says_that_nothing_happens_there(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # As with an option whose name does not say that its number is that of a GPU.
    monkeypatch.setenv(INSIDE_JOB, LOCAL)
    assert run_remote(home / "script.py", gpu_id="2") is None
    said = capsys.readouterr().err
    assert "run_remote does nothing here" in said
    assert "leave the option that leads here out of run_remote(arguments=[" in said


def test_with_remote_in_so_many_words_a_number_is_no_gpu_of_this_machine(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["script.py", "--remote", "--gpu-id", "1"])
    monkeypatch.setattr("heldout.cluster.remote.DASHBOARD", "http://127.0.0.1:1")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    with pytest.raises(InvalidInput, match="no Ray dashboard at http://127.0.0.1:1"):
        run_remote(home / "script.py", gpu_id="1")


def test_another_script_than_this_one_is_not_put_in_its_place(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(InvalidInput, match=r"script\.py is not what this process runs\. .*=2, or"):
        run_remote(home / "script.py", gpu_id=2)
    with pytest.raises(InvalidInput, match="there is no GPU 3: this machine has 3, 0 to 2"):
        run_remote(home / "script.py", gpu_id="3")


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


@pytest.mark.usefixtures("job")
def test_a_job_that_writes_no_run_says_so_and_fails(capfd: pytest.CaptureFixture[str]) -> None:
    Path("old").mkdir()
    Path("old", "run.json").write_text("{}")  # came with the folder
    assert run("job2", [sys.executable, "-c", "pass"]) == 4
    assert "ended without writing a run directory" in capfd.readouterr().err
    code = "open('old/run.json', 'a').write(' ')"
    assert run("job3", [sys.executable, "-c", code]) == 0


def receive(job: str, home: Path) -> Path:
    home.mkdir()
    receiver = Receiver(home)
    for line in ["what Ray says", *pack(job)]:
        assert len(line) < 20_000
        receiver.feed(line)
    receiver.unpack()
    return home


def test_run_directories_arrive_as_they_were_sent(job: str, tmp_path: Path) -> None:
    home = receive(job, tmp_path / "home")
    work = next((tmp_path / "node").glob("*")) / "work"
    assert [r.relative_to(work) for r in find_runs(work)] == [Path("outputs/a")]
    names = [file.relative_to(work) for file in list_run(work / "outputs" / "a")]
    assert (names[0].name, names[-1].name) == ("results.jsonl", "run.json")
    for name in names:
        assert (home / name).read_bytes() == (work / name).read_bytes()


@pytest.mark.usefixtures("job")
def test_the_json_of_a_job_that_failed_arrives_too(tmp_path: Path) -> None:
    code = "print('{\"error\": 1}'); raise SystemExit(2)"
    assert run("job4", [sys.executable, "-c", code, "--json"]) == 2
    assert (receive("job4", tmp_path / "home") / STDOUT).read_text() == '{"error": 1}\n'


def test_a_transfer_that_is_not_whole_is_refused(job: str, tmp_path: Path) -> None:
    for part in (slice(None, -1), slice(1, None)):
        receiver = Receiver(tmp_path)
        for line in list(pack(job))[part]:
            receiver.feed(line)
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
    receiver.feed(CONTENT + base64.b64encode(content.getvalue()).decode())
    receiver.feed(END + hashlib.sha256(content.getvalue()).hexdigest())
    receiver.unpack()
    assert [file.parent.resolve() for file in tmp_path.rglob("x")] in ([home], [home / "a"])
