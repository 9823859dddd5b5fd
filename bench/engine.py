"""Time heldout's own work a sample: a function answers, so nothing else costs anything.

Beside it, in the same run and on the same questions, verifiers and inspect-ai (bench/peers).
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import Any

import anyio

from common import HERE, child, emit, middle, options, peer, say, scratch
from heldout import EvalConfig, Message, Metric, Sample, Score, Trajectory, evaluate

CONCURRENCY = 500
LATENCY = 0.2
PEERS = {
    "verifiers": ("--no-save", "nothing saved"),
    "inspect": ("--no-realtime", "without its real-time log"),
}
"""By name: the option of its script under which it does less, and what is missing then."""


def reply(question: str) -> str:
    """Answer "What is A + B?", wrongly where A leaves 3 on division by 4 (as the peers do)."""
    a, b = (int(part) for part in question.removeprefix("What is ")[:-1].split(" + "))
    return "unknown" if a % 4 == 3 else str(a + b)


def exact_match(trajectory: Trajectory, sample: Sample) -> Score:
    return Score((Metric("exact_match", float(trajectory.answer == sample.ground_truth), 1.0),))


async def measure(case: str, count: int) -> dict[str, Any]:
    """Wall and CPU time of one `evaluate`, its journal and report written."""

    async def at_once(messages: list[Message]) -> str:
        return reply(messages[-1].text)

    async def after_a_while(messages: list[Message]) -> str:
        await anyio.sleep(LATENCY)
        return reply(messages[-1].text)

    def plain(messages: list[Message]) -> str:
        return reply(messages[-1].text)

    endpoint = {"async": at_once, "latency": after_a_while, "plain": plain}[case]
    samples = [
        Sample(str(i), {"question": f"What is {i} + 25?"}, str(i + 25)) for i in range(count)
    ]
    folder = scratch("engine")
    config = EvalConfig(
        endpoint=endpoint,
        experiment_name=case,
        max_concurrent=CONCURRENCY,
        output_dir=str(folder),
        progress=False,
    )
    wall, cpu = time.perf_counter(), time.process_time()
    report = await evaluate(samples, config, exact_match)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    shutil.rmtree(folder)
    expected = sum(i % 4 != 3 for i in range(count)) / count
    if report.summary["n"] != count or abs(report.summary["mean"] - expected) > 1e-9:
        sys.exit(f"wrong result: {report.summary}, expected a mean of {expected}")
    return {"wall_s": wall, "cpu_s": cpu, "cpu_ms_per_sample": 1000 * cpu / count}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--case", choices=("async", "plain", "latency"), help="measure one alone")
    args = parser.parse_args()
    count = 500 if args.quick else 10_000
    if args.case:
        print(json.dumps(anyio.run(measure, args.case, count)))
        return

    own: dict[str, list[dict[str, Any]]] = {"async": [], "plain": [], "latency": []}

    def measure_own() -> None:
        for case, rounds in own.items():
            say(f"heldout, {case} function, {count} samples")
            quick = ["--quick"] if args.quick else []
            rounds.append(child(sys.executable, __file__, "--case", case, *quick))

    # Between the peers, not in one go: what disturbs the machine for a while disturbs all.
    measure_own()
    found: dict[str, dict[str, Any]] = {}
    for name, (lighter, _) in PEERS.items():
        script = HERE / "peers" / f"{name}_bench.py"
        for case, more in (
            ("at once", ()),
            ("lighter", (lighter,)),
            ("latency", ("--latency", str(LATENCY))),
        ):
            say(f"{name}, {case}, {count} samples")
            sizes = "--samples", str(count), "--concurrency", str(CONCURRENCY)
            line = child(peer(args.peers_dir, name), script, *sizes, *more)
            found.setdefault(name, {})[case] = line
        measure_own()

    cpu = middle(own["async"], "cpu_ms_per_sample")
    ideal = LATENCY * count / CONCURRENCY
    wall = middle(own["latency"], "wall_s")
    emit(f"CPU a sample, async function, {count:,} samples", cpu, "ms", target=0.15)
    emit("the same, wall", middle(own["async"], "wall_s"), "s")
    plain = middle(own["plain"], "cpu_ms_per_sample")
    emit("CPU a sample, plain function (in threads)", plain, "ms")
    emit("the same, wall", middle(own["plain"], "wall_s"), "s")
    emit(
        f"wall, {LATENCY} s latency, {CONCURRENCY} in flight, over the ideal {ideal:.1f} s",
        wall / ideal,
        "x",
        target=1.25,
    )
    for name, (_, without) in PEERS.items():
        lines = found[name]
        title = f"{lines['at once']['package']} {lines['at once']['version']}"
        for case, note in (("at once", ""), ("lighter", f", {without}")):
            spent = lines[case]["cpu_ms_per_sample"]
            emit(f"{title}: CPU a sample{note}", spent, "ms", ratio=spent / cpu)
        over = lines["latency"]["wall_s"]
        emit(f"{title}: wall with latency, over the ideal", over / ideal, "x", ratio=over / wall)


if __name__ == "__main__":
    main()
