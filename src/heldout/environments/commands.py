"""The commands of the small shell: what each does to the tree, and what it says.

Each is `(shell, arguments, output)`. A path that is wrong is reported, and the command goes on
with the next one, as the real tools do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from heldout.environments.patterns import PatternError, line_matcher, wildcard
from heldout.environments.shell import (
    IS_A_FOLDER,
    MISSING,
    NOT_A_FOLDER,
    Command,
    Output,
    Shell,
    ShellError,
    blamed,
    is_within,
    join,
    name_of,
    parent,
)

MAX_SEARCHED = 400_000
"""Characters that one grep looks at."""


def options(
    command: str, arguments: Iterable[str], known: str, *, needs: str = ""
) -> tuple[set[str], list[str]]:
    """Single-letter options and the rest, as GNU tools have them: options may come last too."""
    found: set[str] = set()
    rest: list[str] = []
    ended = False
    for argument in arguments:
        if ended or argument == "-" or not argument.startswith("-"):
            rest.append(argument)
        elif argument == "--":
            ended = True
        elif argument.startswith("--"):
            raise ShellError(
                f"{command}: unrecognized option '{argument}'. Known here: {_listed(known)}"
            )
        else:
            for letter in argument[1:]:
                if letter not in known:
                    raise ShellError(
                        f"{command}: invalid option -- '{letter}'. Known here: {_listed(known)}"
                    )
                found.add(letter)
    if needs and not rest:
        raise ShellError(f"{command}: missing {needs}")
    return found, rest


def _listed(letters: str) -> str:
    return " ".join(f"-{letter}" for letter in letters) or "none"


@contextmanager
def reported(output: Output) -> Iterator[None]:
    """One path that is wrong is said to be, and the command goes on."""
    try:
        yield
    except ShellError as problem:
        output.error(str(problem))


# --- Looking around -----------------------------------------------------------------------------


def pwd(shell: Shell, arguments: list[str], output: Output) -> None:
    options("pwd", arguments, "LP")
    output.line(shell.cwd)


def cd(shell: Shell, arguments: list[str], output: Output) -> None:
    _, paths = options("cd", arguments, "")
    if len(paths) > 1:
        raise ShellError("cd: too many arguments")
    path = shell.existing(paths[0], "cd: {}: {}") if paths else "/"
    if not shell.tree.is_folder(path):
        raise ShellError(f"cd: {paths[0]}: {NOT_A_FOLDER}")
    shell.cwd = path


def ls(shell: Shell, arguments: list[str], output: Output) -> None:
    flags, paths = options("ls", arguments, "aAlRF1pdh")
    files: list[tuple[str, str]] = []
    folders: list[tuple[str, str]] = []
    for text in paths or ["."]:
        with reported(output):
            path = shell.existing(text, "ls: cannot access '{}': {}")
            is_listed = shell.tree.is_folder(path) and "d" not in flags
            (folders if is_listed else files).append((text, path))
    for text, path in files:
        output.line(_entry(shell, path, text, flags))
    headed = len(paths) > 1 or "R" in flags
    for text, path in folders:
        for folder in shell.tree.below(path) if "R" in flags else [path]:
            if not shell.tree.is_folder(folder):
                continue
            if headed:
                shown = (
                    text if folder == path else text.rstrip("/") + folder[len(path.rstrip("/")) :]
                )
                output.line(f"{'' if not output.parts else chr(10)}{shown}:")
            if "a" in flags:
                output.line(_entry(shell, folder, ".", flags))
                output.line(_entry(shell, parent(folder), "..", flags))
            for child in shell.tree.children(folder):
                if flags & {"a", "A"} or not name_of(child).startswith("."):
                    output.line(_entry(shell, child, name_of(child), flags))


def _under(text: str, start: str, path: str) -> str:
    """A path at or below `start`, shown as the user, who wrote `text` for it, would."""
    below = path[len(start.rstrip("/")) :].strip("/")
    return f"{text.rstrip('/')}/{below}" if below else text


def _entry(shell: Shell, path: str, shown: str, flags: set[str]) -> str:
    content = shell.tree.nodes[path]
    if flags & {"F", "p"} and content is None:
        shown += "/"
    if "l" not in flags:
        return shown
    kind, size = ("d", 0) if content is None else ("-", len(content.encode()))
    return f"{kind}rw-r--r-- {size:>6} {shown}"


def cat(shell: Shell, arguments: list[str], output: Output) -> None:
    flags, paths = options("cat", arguments, "n", needs="file operand")
    number = 0
    for text in paths:
        with reported(output):
            content = shell.content(text, "cat: {}: {}")
            if "n" not in flags:
                output.write(content)
                continue
            for line in content.splitlines(keepends=True):
                number += 1
                output.write(f"{number:>6}\t{line}")


def find(shell: Shell, arguments: list[str], output: Output) -> None:
    starts: list[str] = []
    tests: list[Callable[[str], bool]] = []
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-"):
            if tests:
                raise ShellError(f"find: paths must precede expression: '{argument}'")
            starts.append(argument)
            continue
        if argument not in ("-name", "-iname", "-type"):
            raise ShellError(
                f"find: unknown predicate '{argument}'. Known here: -name, -iname and -type"
            )
        value = next(rest, None)
        if value is None:
            raise ShellError(f"find: missing argument to '{argument}'")
        if argument == "-type":
            if value not in ("f", "d"):
                raise ShellError(f"find: Unknown argument to -type: {value}")
            tests.append(shell.tree.is_file if value == "f" else shell.tree.is_folder)
        else:
            tests.append(_named(value, ignore_case=argument == "-iname"))
    for text in starts or ["."]:
        with reported(output):
            start = shell.existing(text, "find: '{}': {}")
            for path in shell.tree.below(start):
                if all(test(path) for test in tests):
                    output.line(_under(text, start, path))


def _named(pattern: str, *, ignore_case: bool) -> Callable[[str], bool]:
    matches = wildcard(pattern, ignore_case=ignore_case)
    return lambda path: matches(name_of(path))


def wc(shell: Shell, arguments: list[str], output: Output) -> None:
    flags, paths = options("wc", arguments, "lwcm", needs="file operand")
    wanted = [letter for letter in "lwmc" if letter in (flags or "lwc")]
    rows: list[tuple[list[int], str]] = []
    for text in paths:
        with reported(output):
            content = shell.content(text, "wc: {}: {}")
            counted = {
                "l": content.count("\n"),
                "w": len(content.split()),
                "m": len(content),
                "c": len(content.encode()),
            }
            rows.append(([counted[letter] for letter in wanted], text))
    if len(paths) > 1:
        sums = [sum(column) for column in zip(*(counts for counts, _ in rows), strict=True)]
        rows.append((sums or [0] * len(wanted), "total"))
    width = max((len(str(n)) for counts, _ in rows for n in counts), default=1)
    width = 1 if len(rows) == 1 and len(wanted) == 1 else width
    for counts, text in rows:
        output.line(f"{' '.join(f'{n:>{width}}' for n in counts)} {text}")


# --- Searching ----------------------------------------------------------------------------------


def grep(shell: Shell, arguments: list[str], output: Output) -> None:
    flags, rest = options("grep", arguments, "rRinvclwxFEHhqos", needs="pattern")
    if flags & {"o", "q"}:
        raise ShellError("grep: -o and -q are not supported here")
    pattern, paths = rest[0], rest[1:]
    recursive = bool(flags & {"r", "R"})
    if not paths and not recursive:
        raise ShellError("grep: give a file to search, or -r; there is no standard input here")
    try:
        matches = line_matcher(pattern, flags)
    except PatternError as problem:
        raise ShellError(f"grep: {problem}") from None
    searched = 0
    files = list(_searched(shell, paths or ["."], output, recursive=recursive))
    named = ("H" in flags or len(paths) > 1 or recursive) and "h" not in flags
    for shown, content in files:
        searched += len(content)
        if searched > MAX_SEARCHED:
            raise ShellError("grep: too much to search at once; give fewer files")
        before = f"{shown}:" if named else ""
        lines = list(enumerate(content.splitlines(), 1))
        found = [(n, line) for n, line in lines if matches(line) != ("v" in flags)]
        if "l" in flags:
            if found:
                output.line(shown)
        elif "c" in flags:
            output.line(f"{before}{len(found)}")
        else:
            for number, line in found:
                output.line(f"{before}{f'{number}:' if 'n' in flags else ''}{line}")


def _searched(
    shell: Shell, paths: list[str], output: Output, *, recursive: bool
) -> Iterator[tuple[str, str]]:
    for text in paths:
        with reported(output):
            start = shell.existing(text, "grep: {}: {}")
            if shell.tree.is_folder(start) and not recursive:
                raise ShellError(f"grep: {text}: {IS_A_FOLDER}")
            for path in shell.tree.below(start):
                content = shell.tree.nodes[path]
                if content is not None:
                    yield _under(text, start, path), content


# --- Changing things ----------------------------------------------------------------------------


_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\\\": "\\"}


def echo(shell: Shell, arguments: list[str], output: Output) -> None:
    words = list(arguments)
    flags = ""
    while words and re.fullmatch("-[neE]+", words[0]):
        flags += words.pop(0)[1:]
    text = " ".join(words)
    if "e" in flags:
        text = re.sub(r"\\[ntr\\]", lambda match: _ESCAPES[match[0]], text)
    output.write(text if "n" in flags else text + "\n")


def touch(shell: Shell, arguments: list[str], output: Output) -> None:
    _, paths = options("touch", arguments, "", needs="file operand")
    for text in paths:
        with reported(output):
            path = shell.resolve(text, "touch: cannot touch '{}': {}")
            if path not in shell.tree.nodes:
                _put(shell, path, "", f"touch: cannot touch '{text}'", folder_named=text)


def mkdir(shell: Shell, arguments: list[str], output: Output) -> None:
    flags, paths = options("mkdir", arguments, "pv", needs="operand")
    for text in paths:
        with reported(output):
            complaint = f"mkdir: cannot create directory '{text}'"
            if "p" in flags:
                _make_all(shell, text, complaint)
                continue
            path = shell.resolve(text, "mkdir: cannot create directory '{}': {}")
            if path in shell.tree.nodes:
                raise ShellError(f"{complaint}: File exists")
            _put(shell, path, None, complaint)


def _make_all(shell: Shell, text: str, complaint: str) -> None:
    """Made on the way, since `..` may lead out of what is only now there."""
    path = "/" if text.startswith("/") else shell.cwd
    for part in text.split("/"):
        if part in ("", "."):
            continue
        path = parent(path) if part == ".." else join(path, part)
        if shell.tree.is_file(path):
            raise ShellError(
                f"{complaint}: {'File exists' if text.endswith(part) else NOT_A_FOLDER}"
            )
        if path not in shell.tree.nodes:
            _put(shell, path, None, complaint)


def _put(
    shell: Shell, path: str, content: str | None, complaint: str, *, folder_named: str = ""
) -> None:
    if not shell.tree.is_folder(parent(path)) or folder_named.endswith("/"):
        raise ShellError(f"{complaint}: {shell.why_missing(path)}")
    with blamed(complaint):
        shell.tree.put(path, content)


def rm(shell: Shell, arguments: list[str], output: Output) -> None:
    flags, paths = options("rm", arguments, "rRfdv")
    if not paths and "f" not in flags:
        raise ShellError("rm: missing operand")
    for text in paths:
        with reported(output):
            if name_of(text.rstrip("/")) in (".", ".."):
                raise ShellError(f"rm: refusing to remove '.' or '..' directory: skipping '{text}'")
            try:
                path = shell.existing(text, "rm: cannot remove '{}': {}")
            except ShellError:
                if "f" in flags:
                    continue
                raise
            if shell.tree.is_folder(path):
                _may_remove(shell, text, path, flags)
            shell.tree.remove(path)


def _may_remove(shell: Shell, text: str, path: str, flags: set[str]) -> None:
    complaint = f"rm: cannot remove '{text}'"
    if not flags & {"r", "R", "d"}:
        raise ShellError(f"{complaint}: {IS_A_FOLDER}")
    if path == "/":
        raise ShellError("rm: it is dangerous to operate recursively on '/'")
    if is_within(shell.cwd, path):
        raise ShellError(f"{complaint}: the current directory is in it; cd elsewhere first")
    if not flags & {"r", "R"} and shell.tree.children(path):
        raise ShellError(f"{complaint}: Directory not empty")


def mv(shell: Shell, arguments: list[str], output: Output) -> None:
    _, paths = options("mv", arguments, "fv", needs="file operand")
    for text, source, target in _sources("mv", shell, paths, output):
        with reported(output):
            if source == "/" or name_of(text.rstrip("/")) in (".", ".."):
                raise ShellError(f"mv: cannot move '{text}' to '{target}': Device or resource busy")
            if source == target:
                raise ShellError(f"mv: '{text}' and '{target}' are the same file")
            if is_within(target, source):
                raise ShellError(
                    f"mv: cannot move '{text}' to a subdirectory of itself, '{target}'"
                )
            _check_replaced("mv", shell, text, source, target)
            if shell.tree.is_folder(target) and shell.tree.children(target):
                raise ShellError(f"mv: cannot move '{text}' to '{target}': Directory not empty")
            _move(shell, text, source, target)


def _move(shell: Shell, text: str, source: str, target: str) -> None:
    moved = [(path, shell.tree.nodes[path]) for path in shell.tree.below(source)]
    replaced = shell.tree.nodes.get(target)
    shell.tree.remove(source)
    try:
        for path, content in moved:
            shell.tree.put(target + path[len(source) :], content)
    except ShellError as problem:  # paths may have become too long: all or nothing
        shell.tree.remove(target)
        if replaced is not None:
            shell.tree.put(target, replaced)
        for path, content in moved:
            shell.tree.put(path, content)
        raise ShellError(f"mv: cannot move '{text}' to '{target}': {problem}") from None
    if is_within(shell.cwd, source):
        shell.cwd = target + shell.cwd[len(source) :]


def cp(shell: Shell, arguments: list[str], output: Output) -> None:
    flags, paths = options("cp", arguments, "rRafpv", needs="file operand")
    for text, source, target in _sources("cp", shell, paths, output):
        with reported(output):
            if shell.tree.is_folder(source):
                if not flags & {"r", "R", "a"}:
                    raise ShellError(f"cp: -r not specified; omitting directory '{text}'")
                if is_within(target, source):
                    raise ShellError(
                        f"cp: cannot copy a directory, '{text}', into itself, '{target}'"
                    )
            if source == target:
                raise ShellError(f"cp: '{text}' and '{target}' are the same file")
            for path in shell.tree.below(source):
                copy = target + path[len(source) :]
                _check_replaced("cp", shell, path, path, copy)
                if not (shell.tree.is_folder(path) and shell.tree.is_folder(copy)):
                    with blamed(f"cp: cannot create '{copy}'"):
                        shell.tree.put(copy, shell.tree.nodes[path])


def _sources(
    command: str, shell: Shell, paths: list[str], output: Output
) -> Iterator[tuple[str, str, str]]:
    """What is moved or copied: as written, from where, and to where."""
    if len(paths) == 1:
        raise ShellError(f"{command}: missing destination file operand after '{paths[0]}'")
    *texts, last = paths
    target = shell.resolve(last, f"{command}: cannot stat '{{}}': {{}}")
    into = shell.tree.is_folder(target)
    if not into:
        if len(texts) > 1:
            raise ShellError(f"{command}: target '{last}': {NOT_A_FOLDER}")
        if not shell.tree.is_folder(parent(target)) or shell.tree.is_file(parent(target)):
            why = shell.why_missing(target)
            what = "move" if command == "mv" else "copy"
            raise ShellError(f"{command}: cannot {what} '{texts[0]}' to '{last}': {why}")
    for text in texts:
        with reported(output):
            source = shell.existing(text, f"{command}: cannot stat '{{}}': {{}}")
            if last.endswith("/") and not into and not shell.tree.is_folder(source):
                why = NOT_A_FOLDER if shell.tree.is_file(target) else MISSING
                raise ShellError(f"{command}: cannot create regular file '{last}': {why}")
            yield text, source, join(target, name_of(source)) if into else target


def _check_replaced(command: str, shell: Shell, text: str, source: str, target: str) -> None:
    if shell.tree.is_folder(source) and shell.tree.is_file(target):
        raise ShellError(
            f"{command}: cannot overwrite non-directory '{target}' with directory '{text}'"
        )
    if shell.tree.is_file(source) and shell.tree.is_folder(target):
        raise ShellError(
            f"{command}: cannot overwrite directory '{target}' with non-directory '{text}'"
        )


COMMANDS: dict[str, Command] = {
    "pwd": pwd,
    "cd": cd,
    "ls": ls,
    "cat": cat,
    "echo": echo,
    "mkdir": mkdir,
    "touch": touch,
    "mv": mv,
    "cp": cp,
    "rm": rm,
    "find": find,
    "grep": grep,
    "wc": wc,
}
