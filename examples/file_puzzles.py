"""Ten puzzles in a file tree, for a policy that calls tools.

heldout run examples/file_puzzles.py
heldout run examples/file_puzzles.py --model openai:gpt-4o-mini --name 4o
heldout show file_puzzles --by difficulty

The policy here is a script that knows nine kinds of tasks and not the tenth, so the eval runs
offline, in a second, and comes out the same every time.
"""

import json
import re
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import trio

from file_system import FileSystem
from heldout import Message, Sample, ToolCall, base_config, evaluate

# --- The policy ---------------------------------------------------------------------------------

Calls = Generator[tuple[str, dict[str, Any]], str, None]
"""Tool calls (name and arguments); each is sent the result of the call before."""
Rule = Callable[[re.Match[str]], Calls]


def scripted(messages: list[Message]) -> Message:
    """Take one model turn: the next call of the rule that fits the task, or the end."""
    task = next(m.text for m in messages if m.role == "user")
    results = [m.text for m in messages if m.role == "tool"]
    for pattern, rule in RULES.items():
        if match := re.fullmatch(pattern, task):
            calls = rule(match)
            try:
                name, arguments = next(calls)
                for result in results:
                    name, arguments = calls.send(result)
            except StopIteration:
                return Message("assistant", "Done.")
            call = ToolCall(f"call_{len(results)}", name, json.dumps(arguments))
            return Message("assistant", "", (call,))
    return Message("assistant", "I do not know how.")


def create(task: re.Match[str]) -> Calls:
    yield "write_file", {"path": task[1], "text": f"{task[2]}\n"}


def append(task: re.Match[str]) -> Calls:
    text = yield "read_file", {"path": task[2]}
    yield "write_file", {"path": task[2], "text": f"{text}{task[1]}\n"}


def delete(task: re.Match[str]) -> Calls:
    yield "remove_file", {"path": task[1]}


def rename(task: re.Match[str]) -> Calls:
    yield "move_file", {"path": task[1], "new_path": task[2]}


def archive(task: re.Match[str]) -> Calls:
    yield "move_file", {"path": task[1], "new_path": task[2] + task[1]}


def copy(task: re.Match[str]) -> Calls:
    listing = yield "list_files", {"path": task[1]}
    for path in listing.splitlines():
        text = yield "read_file", {"path": path}
        yield "write_file", {"path": task[2] + path.removeprefix(task[1]), "text": text}


def delete_all(task: re.Match[str]) -> Calls:
    listing = yield "list_files", {}
    for path in listing.splitlines():
        if path.endswith(task[1]):
            yield "remove_file", {"path": path}


def find_text(task: re.Match[str]) -> Calls:
    listing = yield "list_files", {}
    for path in listing.splitlines():
        text = yield "read_file", {"path": path}
        if task[1] in text:
            yield "move_file", {"path": path, "new_path": task[2]}
            return


def count_lines(task: re.Match[str]) -> Calls:
    text = yield "read_file", {"path": task[1]}
    yield "write_file", {"path": task[2], "text": f"{len(text.splitlines())}\n"}


RULES: dict[str, Rule] = {
    r"Create the file (\S+) with the one line: (.*)": create,
    r"Add the line: (.*) to the end of (\S+)": append,
    r"Delete the file (\S+)": delete,
    r"Rename (\S+) to (\S+)": rename,
    r"Copy the directory (\S+) to (\S+)": copy,
    r"Move (\S+) into a new directory (\S+)": archive,
    r"Delete every file whose name ends in (\S+), wherever it is": delete_all,
    r"One file contains the word (\S+)\. Move it to (\S+)": find_text,
    r"Write the number of lines of (\S+) to (\S+)": count_lines,
}

# --- The eval -----------------------------------------------------------------------------------

config = replace(base_config, endpoint=scripted, experiment_name="file_puzzles", max_turns=12)
score_fn = FileSystem.score
environment_factory = FileSystem.for_sample


def load_dataset() -> list[Sample]:
    return [
        puzzle("create", "easy", "Create the file /hello.txt with the one line: Hello, world!",
               {"/readme.md": "# Nothing yet\n"},
               {"/hello.txt": "Hello, world!\n", "/readme.md": "# Nothing yet\n"}),
        puzzle("delete", "easy", "Delete the file /tmp/scratch.txt",
               {"/tmp/scratch.txt": "x\n", "/tmp/keep.txt": "y\n"},
               {"/tmp/scratch.txt": None, "/tmp/keep.txt": "y\n"}),
        puzzle("rename", "easy", "Rename /draft.md to /final.md",
               {"/draft.md": "It was a dark and stormy night.\n"},
               {"/draft.md": None, "/final.md": "It was a dark and stormy night.\n"}),
        puzzle("append", "easy", "Add the line: reviewed to the end of /log/changes.txt",
               {"/log/changes.txt": "written\nread\n"},
               {"/log/changes.txt": "written\nread\nreviewed\n"}),
        puzzle("archive", "medium", "Move /report.csv into a new directory /backup/2024",
               {"/report.csv": "a,b\n1,2\n", "/backup/2023/report.csv": "a,b\n0,1\n"},
               {"/report.csv": None, "/backup/2024/report.csv": "a,b\n1,2\n"}),
        puzzle("copy", "medium", "Copy the directory /src to /src.bak",
               {"/src/main.c": "int main() {}\n", "/src/lib/list.c": "\n"},
               {"/src/main.c": "int main() {}\n", "/src.bak/main.c": "int main() {}\n",
                "/src.bak/lib/list.c": "\n"}),
        puzzle("delete_all", "medium",
               "Delete every file whose name ends in .tmp, wherever it is",
               {"/a.tmp": "", "/lab/b.tmp": "", "/lab/deep/c.tmp": "", "/lab/tmp.txt": "t\n"},
               {"/a.tmp": None, "/lab/b.tmp": None, "/lab/deep/c.tmp": None,
                "/lab/tmp.txt": "t\n"}),
        puzzle("find_text", "hard", "One file contains the word NEEDLE. Move it to /found.txt",
               {"/hay/1.txt": "hay\n", "/hay/2.txt": "hay\nNEEDLE\n", "/hay/needle.txt": "no\n"},
               {"/hay/2.txt": None, "/found.txt": "hay\nNEEDLE\n", "/hay/needle.txt": "no\n"}),
        puzzle("count_lines", "hard", "Write the number of lines of /data/words.txt to /count.txt",
               {"/data/words.txt": "one\ntwo\nthree\nfour\n"},
               {"/count.txt": "4\n", "/data/words.txt": "one\ntwo\nthree\nfour\n"}),
        puzzle("swap", "hard", "Swap the contents of /left.txt and /right.txt",
               {"/left.txt": "L\n", "/right.txt": "R\n"},
               {"/left.txt": "R\n", "/right.txt": "L\n"}),
    ]  # fmt: skip


def puzzle(
    kind: str, difficulty: str, task: str, files: dict[str, str], goal: dict[str, str | None]
) -> Sample:
    return Sample(
        kind,
        {"prompt": task, "files": files, "goal": goal},
        metadata={"kind": kind, "difficulty": difficulty},
    )


if __name__ == "__main__":
    report = trio.run(evaluate, load_dataset(), config, score_fn, None, environment_factory)
    print(f"solved {report.summary['mean']:.0%}, saved to {report.path}")
