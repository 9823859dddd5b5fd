"""A file tree in memory and a small shell over it: the world of the `FileSystem` puzzles.

Nothing here touches a disk. A command gives the text a terminal would show, errors included, in
the words of the real tools. Sizes are bounded, and so is the work that any command can cause:
patterns are matched without backtracking.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from heldout.environments.patterns import wildcard

MAX_COMMAND = 10_000
"""Characters of one command."""
MAX_OUTPUT = 20_000
"""Characters shown of what a command writes; the rest is cut off, and that is said."""
MAX_ENTRIES = 1_000
"""Files and directories of a tree."""
MAX_CHARACTERS = 200_000
"""Of all files and paths together."""
MAX_PATH = 1_000
MAX_NAME = 255
MAX_WORDS = 500
"""Words of a command, wildcards expanded."""

MISSING = "No such file or directory"
NOT_A_FOLDER = "Not a directory"
IS_A_FOLDER = "Is a directory"


class ShellError(Exception):
    """What a command writes to stderr when it cannot go on."""


# --- The tree -----------------------------------------------------------------------------------


class Tree:
    """Absolute paths to contents; None is a directory. The root is always there."""

    def __init__(self) -> None:
        self.nodes: dict[str, str | None] = {"/": None}
        self._size = 0

    def is_file(self, path: str) -> bool:
        return self.nodes.get(path) is not None

    def is_folder(self, path: str) -> bool:
        return path in self.nodes and self.nodes[path] is None

    def children(self, folder: str) -> list[str]:
        return sorted(p for p in self.nodes if p != "/" and parent(p) == folder)

    def below(self, path: str) -> list[str]:
        """The path itself and all under it, each directory before what it holds."""
        return sorted((p for p in self.nodes if is_within(p, path)), key=lambda p: p.split("/"))

    def put(self, path: str, content: str | None) -> None:
        """Write a file, or make a directory (None), in a directory that is there."""
        is_new = path not in self.nodes
        size = self._size + len(content or "")
        size += len(path) if is_new else -len(self.nodes[path] or "")
        if len(path) > MAX_PATH or len(name_of(path)) > MAX_NAME:
            raise ShellError("File name too long")
        if size > MAX_CHARACTERS or (is_new and len(self.nodes) >= MAX_ENTRIES):
            raise ShellError("No space left on device")
        self.nodes[path] = content
        self._size = size

    def remove(self, path: str) -> None:
        for inside in self.below(path):
            self._size -= len(inside) + len(self.nodes.pop(inside) or "")


def parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


def join(folder: str, name: str) -> str:
    return f"/{name}" if folder == "/" else f"{folder}/{name}"


def is_within(path: str, folder: str) -> bool:
    return path == folder or folder == "/" or path.startswith(folder + "/")


# --- Words --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command line, and as a pattern if it has wildcards outside of quotes."""

    text: str
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class Line:
    words: list[Word]
    redirect: str | None = None
    """`>` or `>>`, if the output goes to a file."""
    target: Word | None = None


_BLANK = " \t"
_OPERATORS = "|&;<>()\n"
_SUBSTITUTION = re.compile(r"\$[\w({?!@*#$'\"-]|`")


def parse(command: str) -> Line:
    """A command line into words, quotes taken as a shell takes them."""
    if len(command) > MAX_COMMAND:
        raise ShellError(f"sh: a command has at most {MAX_COMMAND} characters")
    words: list[Word] = []
    redirect: str | None = None
    target: Word | None = None
    for token in _tokens(command.strip()):
        if isinstance(token, str):
            if token not in (">", ">>") or redirect is not None:
                raise ShellError(
                    f"sh: '{token}' is not supported here: give one command at a time"
                    if redirect is None
                    else "sh: only one redirection is supported, at the end"
                )
            redirect = token
        elif redirect is not None and target is None:
            target = token
        else:
            words.append(token)  # `> file` may stand anywhere, as in a shell
    if redirect is not None and target is None:
        raise ShellError("sh: syntax error: there is no file name after the redirection")
    return Line(words, redirect, target)


def _tokens(command: str) -> Iterator[Word | str]:
    """Words, and operators as plain text."""
    position = 0
    while position < len(command):
        character = command[position]
        if character in _BLANK:
            position += 1
        elif character in _OPERATORS:
            operator = re.match(r"\n|>>|<<+|&&|\|\||[|&;<>()]", command[position:])
            assert operator is not None
            yield "newline" if operator[0] == "\n" else operator[0]
            position += operator.end()
        elif character == "#":
            return
        else:
            word, position = _word(command, position)
            if command[position : position + 1] in ("<", ">") and word.text.isdigit():
                raise ShellError(
                    f"sh: '{word.text}{command[position]}' is not supported here: "
                    "only > and >> of the output are"
                )
            yield word


def _word(command: str, position: int) -> tuple[Word, int]:
    text: list[str] = []
    pattern: list[str] = []
    wild = braces = False
    start = position
    while position < len(command) and command[position] not in _BLANK + _OPERATORS:
        character = command[position]
        position += 1
        if character == "\\":
            if position == len(command):
                raise ShellError("sh: syntax error: nothing follows the last backslash")
            quoted = command[position]
            position += 1
        elif character in "'\"":
            quoted, position = _quoted(command, position, character)
        else:
            _refuse_substitution(command, position - 1)
            wild = wild or character in "*?["
            braces = braces or character == "{"
            if character == "~" and position - 1 == start and command[position : position + 1] in (
                "", "/", *_BLANK, *_OPERATORS
            ):  # fmt: skip
                character = ""  # home is the root
                if command[position : position + 1] != "/":
                    character = "/"
            text.append(character)
            pattern.append(character)
            continue
        text.append(quoted)
        pattern.append(re.sub(r"([*?[])", r"[\1]", quoted))
    if braces and re.search(r"\{[^{}]*(,|\.\.)[^{}]*\}", command[start:position]):
        raise ShellError("sh: {…,…} is not supported here: write out the names, or quote it")
    return Word("".join(text), "".join(pattern) if wild else None), position


def _quoted(command: str, position: int, quote: str) -> tuple[str, int]:
    text: list[str] = []
    while position < len(command):
        character = command[position]
        position += 1
        if character == quote:
            return "".join(text), position
        if quote == '"':
            _refuse_substitution(command, position - 1)
            if character == "\\" and command[position : position + 1] in ("\\", '"', "$", "`"):
                character = command[position]
                position += 1
        text.append(character)
    raise ShellError(f"sh: syntax error: the quote {quote} is never closed")


def _refuse_substitution(command: str, position: int) -> None:
    # Passed over in silence it would put other text into files than the model meant.
    if match := _SUBSTITUTION.match(command, position):
        raise ShellError(
            f"sh: '{match[0]}' is not supported here: there are no variables and no command "
            "substitution; put text in single quotes"
        )


# --- The shell ----------------------------------------------------------------------------------


@dataclass
class Output:
    """What a command wrote, in order; errors are not part of what `>` puts into a file."""

    parts: list[tuple[bool, str]] = field(default_factory=list)

    size: int = 0

    def write(self, text: str) -> None:
        self._add(False, text)

    def line(self, text: str) -> None:
        self._add(False, text + "\n")

    def error(self, text: str) -> None:
        self._add(True, text + "\n")

    def _add(self, is_error: bool, text: str) -> None:
        self.size += len(text)
        if self.size > 2 * MAX_CHARACTERS:  # a file may be named many times over
            self.parts.clear()
            raise ShellError("sh: the command writes too much; it was stopped")
        self.parts.append((is_error, text))

    def text(self, *, errors: bool | None = None) -> str:
        return "".join(text for is_error, text in self.parts if errors in (None, is_error))


class Shell:
    """A tree, a current directory and the commands there are; `run` is one command."""

    def __init__(self, tree: Tree, commands: Mapping[str, Command], cwd: str = "/") -> None:
        self.tree, self.commands, self.cwd = tree, commands, cwd

    def run(self, command: str) -> str:
        output = Output()
        try:
            self._run(parse(command), output)
        except ShellError as problem:
            output.parts.append((True, f"{problem}\n"))
        shown = output.text()
        if len(shown) > MAX_OUTPUT:
            left = len(shown) - MAX_OUTPUT
            shown = f"{shown[:MAX_OUTPUT]}\n[{left} more characters are not shown]\n"
        return shown

    def _run(self, line: Line, output: Output) -> None:
        words: list[str] = []
        for word in line.words:
            words += self._expanded(word)
            if len(words) > MAX_WORDS:
                raise ShellError(f"sh: {words[0][:100]}: Argument list too long")
        target = self._target(line.target) if line.target is not None else None
        if words:
            command = self.commands.get(words[0])
            if command is None:
                raise ShellError(
                    f"sh: {words[0][:100]}: command not found. The commands are: "
                    f"{', '.join(self.commands)}"
                )
            command(self, words[1:], output)
        if target is not None and line.target is not None:
            old = self.tree.nodes.get(target) if line.redirect == ">>" else None
            written, output.parts = output.text(errors=False), [p for p in output.parts if p[0]]
            with blamed(f"sh: {line.target.text}"):
                self.tree.put(target, (old or "") + written)

    def _target(self, word: Word) -> str:
        """The file that output goes to; refused before the command runs, as a shell does."""
        path = self.resolve(word.text, "sh: {}: {}")
        if self.tree.is_folder(path):
            raise ShellError(f"sh: {word.text}: {IS_A_FOLDER}")
        if not self.tree.is_folder(parent(path)) or word.text.endswith("/"):
            raise ShellError(f"sh: {word.text}: {self.why_missing(path)}")
        return path

    def _expanded(self, word: Word) -> list[str]:
        """The paths a word with wildcards stands for; the word itself where there are none."""
        if word.pattern is None:
            return [word.text]
        rooted = word.pattern.startswith("/")
        found = [("/" if rooted else self.cwd, "/" if rooted else "")]
        for part in [p for p in word.pattern.split("/") if p]:
            following = []
            for folder, shown in found:
                for path in self._matching(folder, part):
                    name = name_of(path) if part not in (".", "..") else part
                    following.append(
                        (path, f"{shown}/{name}" if shown.strip("/") else shown + name)
                    )
            found = following
            if len(found) > MAX_ENTRIES:  # `*/../*/../*` and so on
                raise ShellError(f"sh: {word.text[:100]}: Argument list too long")
        if word.pattern.endswith("/"):
            found = [(path, shown + "/") for path, shown in found if self.tree.is_folder(path)]
        return sorted(shown for _, shown in found) or [word.text]

    def _matching(self, folder: str, part: str) -> Iterator[str]:
        if part in (".", ".."):
            yield folder if part == "." else parent(folder)
            return
        if not self.tree.is_folder(folder):
            return
        matches = wildcard(part)
        for path in self.tree.children(folder):
            hidden = name_of(path).startswith(".") and not part.startswith(".")
            if not hidden and matches(name_of(path)):
                yield path

    # --- Paths ---

    def resolve(self, text: str, complaint: str = "{}: {}") -> str:
        """An absolute path without `.` and `..`; `..` out of what is no directory is refused."""
        if not text:
            raise ShellError(complaint.format("''", MISSING))
        path = "/" if text.startswith("/") else self.cwd
        for part in text.split("/"):
            if part in ("", "."):
                continue
            if part == "..":
                if not self.tree.is_folder(path):
                    raise ShellError(complaint.format(text, self.why_missing(path)))
                path = parent(path)
            else:
                path = join(path, part)
        return path

    def existing(self, text: str, complaint: str) -> str:
        """A path that is there; `complaint` has places for the text and for what is wrong."""
        path = self.resolve(text, complaint)
        if path not in self.tree.nodes:
            raise ShellError(complaint.format(text, self.why_missing(path)))
        if text.endswith(("/", "/.")) and not self.tree.is_folder(path):
            raise ShellError(complaint.format(text, NOT_A_FOLDER))
        return path

    def why_missing(self, path: str) -> str:
        above = path
        while above != "/":
            if self.tree.is_file(above):
                return NOT_A_FOLDER
            above = parent(above)
        return MISSING

    def content(self, text: str, complaint: str) -> str:
        path = self.existing(text, complaint)
        found = self.tree.nodes[path]
        if found is None:
            raise ShellError(complaint.format(text, IS_A_FOLDER))
        return found


@contextmanager
def blamed(beginning: str) -> Iterator[None]:
    """Puts the command and the path before what the tree refuses."""
    try:
        yield
    except ShellError as problem:
        raise ShellError(f"{beginning}: {problem}") from None


Command = Callable[[Shell, list[str], Output], None]
