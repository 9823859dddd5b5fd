"""The small shell: words, paths, and each command with what it says."""

from __future__ import annotations

import posixpath
import re
import shlex
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heldout.environments import shell as shell_module
from heldout.environments.commands import COMMANDS
from heldout.environments.patterns import PatternError, line_matcher, wildcard
from heldout.environments.shell import Shell, ShellError, Tree, join, parent, parse


def shell_of(*paths: str, cwd: str = "/", **files: str) -> Shell:
    """A shell over these paths: directories end in /, files hold their own name."""
    tree = Tree()
    for path in [*paths, *files]:
        above = "/"
        parts = path.strip("/").split("/")
        for part in parts[:-1]:
            above = join(above, part)
            if not tree.is_folder(above):
                tree.put(above, None)
        content = files.get(path, parts[-1] + "\n")
        tree.put(join(above, parts[-1]), None if path.endswith("/") else content)
    return Shell(tree, COMMANDS, cwd)


def listing(shell: Shell) -> list[str]:
    """All paths but the root, directories with a / at their end."""
    nodes = shell.tree.nodes
    return [p + "/" * (nodes[p] is None) for p in sorted(nodes) if p != "/"]


# --- Words --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("echo a  b", ["echo", "a", "b"]),
        ("echo 'a  b' \"c'd\"", ["echo", "a  b", "c'd"]),
        ("echo a\\ b", ["echo", "a b"]),
        ("echo a'b'\"c\"d", ["echo", "abcd"]),
        ("echo ''", ["echo", ""]),
        ("echo '|' \"&&\" \\;", ["echo", "|", "&&", ";"]),
        ("echo '$HOME' \\$x \"\\$x\" 5$", ["echo", "$HOME", "$x", "$x", "5$"]),
        ("echo 'a\nb'", ["echo", "a\nb"]),
        ("ls ~ ~/x a~", ["ls", "/", "/x", "a~"]),
        ("echo a # b", ["echo", "a"]),
        ("echo a#b", ["echo", "a#b"]),
        ("echo {a} '{a,b}'", ["echo", "{a}", "{a,b}"]),
        ("", []),
    ],
)
def test_words_are_taken_as_a_shell_takes_them(command: str, words: list[str]) -> None:
    assert [word.text for word in parse(command).words] == words


@given(st.text(alphabet="ab \t'\"\\-./=,:", max_size=30))
def test_quoting_is_that_of_shlex(command: str) -> None:
    try:
        expected = shlex.split(command)
    except ValueError:
        with pytest.raises(ShellError, match="syntax error"):
            parse(command)
        return
    if not re.search(r"\\$", command.rstrip()):  # shlex joins lines there
        assert [word.text for word in parse(command).words] == expected


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("ls | wc", "'|' is not supported here: give one command at a time"),
        ("ls && pwd", "'&&' is not supported"),
        ("ls; pwd", "';' is not supported"),
        ("ls || pwd", "'||' is not supported"),
        ("cat < a", "'<' is not supported"),
        ("cat << EOF", "'<<' is not supported"),
        ("ls\npwd", "'newline' is not supported"),
        ("(ls)", "'(' is not supported"),
        ("ls &", "'&' is not supported"),
        ("ls 2> x", "'2>' is not supported"),
        ("ls > a > b", "only one redirection"),
        ("ls >", "no file name after the redirection"),
        ("echo 'a", "the quote ' is never closed"),
        ('echo "a', 'the quote " is never closed'),
        ("echo a\\", "nothing follows the last backslash"),
        ("echo $HOME", "'$H' is not supported here: there are no variables"),
        ('echo "it costs $5"', "put text in single quotes"),
        ("echo `ls`", "'`' is not supported"),
        ("echo $(ls)", "'$(' is not supported"),
        ("mkdir {a,b}", "{…,…} is not supported"),
        ("echo " + "x" * 20_000, "at most 10000 characters"),
        ("tree", "tree: command not found. The commands are: pwd, cd, ls"),
        ("rm --recursive x", "unrecognized option '--recursive'"),
        ("rm -z x", "invalid option -- 'z'. Known here: -r"),
    ],
)
def test_what_is_not_supported_is_said_and_does_nothing(command: str, said: str) -> None:
    shell = shell_of("/x")
    before = dict(shell.tree.nodes)
    assert said in shell.run(command)
    assert shell.tree.nodes == before


# --- Paths --------------------------------------------------------------------------------------

FOLDERS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=3)


@given(FOLDERS, st.lists(st.sampled_from(["a", "b", "..", ".", ""]), min_size=1, max_size=6))
def test_paths_are_resolved_as_posix_does_where_directories_exist(
    cwd: list[str], parts: list[str]
) -> None:
    text = "/".join(parts)
    shell = shell_of("/x")
    shell.run(f"mkdir -p /{'/'.join(cwd)}")
    if cwd:
        assert shell.run(f"cd /{'/'.join(cwd)}") == ""
    expected = posixpath.normpath(posixpath.join(shell.cwd, text)).replace("//", "/")
    if not text:
        return
    shell.run(f"mkdir -p '{text}'")
    assert shell.resolve(text) == expected
    assert shell.run(f"cd '{text}'") == ""
    assert shell.run("pwd") == f"{expected}\n"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["mkdir", "mkdir -p", "touch", "cd", "rm", "rm -r", "mv", "cp -r"]),
            st.lists(
                st.sampled_from(
                    ["a", "b", "a/b", "b/a", "a/b/c", "..", ".", "/", "/a", "/b/", "*", "a/*", "?"]
                ),
                max_size=3,
            ),
        ),
        max_size=12,
    )
)
def test_the_tree_stays_a_tree_whatever_is_done_to_it(
    commands: list[tuple[str, list[str]]],
) -> None:
    shell = shell_of("/a/b/c", "/b/")
    for command, arguments in commands:
        shell.run(f"{command} {' '.join(arguments)}")
        nodes = shell.tree.nodes
        assert nodes["/"] is None
        assert shell.tree.is_folder(shell.cwd)
        for path in nodes:
            assert path == posixpath.normpath(path)
            assert shell.tree.is_folder(parent(path))
        assert shell.tree._size == sum(len(p) + len(c or "") for p, c in nodes.items() if p != "/")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nope/../a", "No such file or directory"),
        ("a/../a", "Not a directory"),
        ("a/", "Not a directory"),
        ("a/x", "Not a directory"),
        ("''", "No such file or directory"),
    ],
)
def test_a_path_through_what_is_no_directory_is_wrong(text: str, said: str) -> None:
    assert shell_of("/a").run(f"cat {text}").endswith(f": {said}\n")


# --- Commands -----------------------------------------------------------------------------------


def test_cd_moves_and_says_what_is_wrong() -> None:
    shell = shell_of("/a/b/", "/f")
    assert shell.run("cd a/b") == ""
    assert shell.run("pwd") == "/a/b\n"
    assert shell.run("cd ../..") == ""
    assert shell.run("cd nowhere") == "cd: nowhere: No such file or directory\n"
    assert shell.run("cd /f") == "cd: /f: Not a directory\n"
    assert shell.run("cd a b") == "cd: too many arguments\n"
    shell.run("cd /a")
    assert shell.run("cd") == ""
    assert shell.cwd == "/"


def test_ls_lists_names_in_order_and_hides_dot_files() -> None:
    shell = shell_of("/b", "/a/x", "/.hidden", "/a/.y")
    assert shell.run("ls") == "a\nb\n"
    assert shell.run("ls -a") == ".\n..\n.hidden\na\nb\n"
    assert shell.run("ls -A a") == ".y\nx\n"
    assert shell.run("ls -F") == "a/\nb\n"
    assert shell.run("ls b a nope") == (
        "ls: cannot access 'nope': No such file or directory\nb\n\na:\nx\n"
    )
    assert shell.run("ls -d a") == "a\n"
    assert shell.run("ls -R") == ".:\na\nb\n\n./a:\nx\n"
    assert shell.run("ls -l") == "drw-r--r--      0 a\n-rw-r--r--      2 b\n"


def test_cat_prints_files_one_after_another_and_goes_on_after_an_error() -> None:
    shell = shell_of("/d/", a="one\n", b="two")
    assert shell.run("cat a nope d b") == (
        "one\ncat: nope: No such file or directory\ncat: d: Is a directory\ntwo"
    )
    assert shell.run("cat -n a") == "     1\tone\n"
    assert shell.run("cat") == "cat: missing file operand\n"


def test_echo_writes_replaces_and_appends() -> None:
    shell = shell_of("/d/")
    assert shell.run("echo hello   world > d/f") == ""
    assert shell.run("echo 'more  text' >> d/f") == ""
    assert shell.tree.nodes["/d/f"] == "hello world\nmore  text\n"
    shell.run("echo -n x > d/f")
    assert shell.tree.nodes["/d/f"] == "x"
    shell.run("echo -e 'a\\nb' > d/f")
    assert shell.tree.nodes["/d/f"] == "a\nb\n"
    shell.run("> d/f")
    assert shell.tree.nodes["/d/f"] == ""
    assert shell.run("echo hi") == "hi\n"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("d", "sh: d: Is a directory"),
        ("nope/f", "sh: nope/f: No such file or directory"),
        ("f/g", "sh: f/g: Not a directory"),
        ("g/", "sh: g/: No such file or directory"),
    ],
)
def test_a_redirection_that_cannot_be_keeps_the_command_from_running(
    target: str, said: str
) -> None:
    shell = shell_of("/d/", "/f")
    assert shell.run(f"rm f > {target}") == f"{said}\n"
    assert shell.tree.is_file("/f")


def test_errors_are_shown_and_not_redirected() -> None:
    shell = shell_of(a="one\n")
    assert shell.run("cat a nope > out") == "cat: nope: No such file or directory\n"
    assert shell.tree.nodes["/out"] == "one\n"


def test_mkdir_makes_directories() -> None:
    shell = shell_of("/f", "/d/")
    assert shell.run("mkdir a d f x/y") == (
        "mkdir: cannot create directory 'd': File exists\n"
        "mkdir: cannot create directory 'f': File exists\n"
        "mkdir: cannot create directory 'x/y': No such file or directory\n"
    )
    assert shell.run("mkdir -p x/y/z d") == ""
    assert shell.run("mkdir -p f/g") == "mkdir: cannot create directory 'f/g': Not a directory\n"
    assert listing(shell) == ["/a/", "/d/", "/f", "/x/", "/x/y/", "/x/y/z/"]
    assert shell.run("mkdir") == "mkdir: missing operand\n"


def test_touch_makes_empty_files_and_leaves_others_alone() -> None:
    shell = shell_of(f="text")
    assert shell.run("touch f g nope/h") == (
        "touch: cannot touch 'nope/h': No such file or directory\n"
    )
    assert (shell.tree.nodes["/f"], shell.tree.nodes["/g"]) == ("text", "")


def test_mv_renames_moves_and_replaces() -> None:
    shell = shell_of("/a", "/b", "/d/", "/e/x")
    assert shell.run("mv a c") == ""
    assert shell.run("mv c b d") == ""
    assert shell.run("mv e d/f") == ""
    assert listing(shell) == ["/d/", "/d/b", "/d/c", "/d/f/", "/d/f/x"]
    assert shell.run("mv d/c d/b") == ""
    assert shell.tree.nodes["/d/b"] == "a\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("nope d", "mv: cannot stat 'nope': No such file or directory"),
        ("a nope/b", "mv: cannot move 'a' to 'nope/b': No such file or directory"),
        ("a b/c", "mv: cannot move 'a' to 'b/c': Not a directory"),
        ("a", "mv: missing destination file operand after 'a'"),
        ("", "mv: missing file operand"),
        ("a b nope", "mv: target 'nope': Not a directory"),
        ("a a", "mv: 'a' and '/a' are the same file"),
        ("d d/e", "mv: cannot move 'd' to a subdirectory of itself, '/d/e/d'"),
        ("d d", "mv: cannot move 'd' to a subdirectory of itself, '/d/d'"),
        ("d a", "mv: cannot overwrite non-directory '/a' with directory 'd'"),
        ("x d", "mv: cannot overwrite directory '/d/x' with non-directory 'x'"),
        ("y/e d", "mv: cannot move 'y/e' to '/d/e': Directory not empty"),
        ("a new/", "mv: cannot create regular file 'new/': No such file or directory"),
        (". d", "mv: cannot move '.' to"),
        ("/ d", "mv: cannot move '/' to"),
    ],
)
def test_mv_says_what_cannot_be_and_leaves_everything(arguments: str, said: str) -> None:
    shell = shell_of("/a", "/b", "/x", "/d/x/", "/d/e/1", "/y/e/2")
    before = dict(shell.tree.nodes)
    assert shell.run(f"mv {arguments}").startswith(said)
    assert shell.tree.nodes == before


def test_mv_of_where_one_is_takes_one_along() -> None:
    shell = shell_of("/a/b/c", cwd="/a/b")
    assert shell.run("mv /a /z") == ""
    assert shell.run("pwd") == "/z/b\n"


def test_cp_copies_files_and_with_r_directories() -> None:
    shell = shell_of("/a", "/d/x", "/e/")
    assert shell.run("cp a b") == ""
    assert shell.run("cp a b e") == ""
    assert shell.run("cp d e") == "cp: -r not specified; omitting directory 'd'\n"
    assert shell.run("cp -r d e") == ""
    assert shell.run("cp -r d new") == ""
    assert listing(shell) == [
        "/a", "/b", "/d/", "/d/x", "/e/", "/e/a", "/e/b", "/e/d/", "/e/d/x", "/new/", "/new/x",
    ]  # fmt: skip
    assert shell.run("cp -r d d/in") == "cp: cannot copy a directory, 'd', into itself, '/d/in'\n"
    assert shell.run("cp a a") == "cp: 'a' and '/a' are the same file\n"
    assert shell.run("cp nope b") == "cp: cannot stat 'nope': No such file or directory\n"
    assert shell.run("cp -r d a") == (
        "cp: cannot overwrite non-directory '/a' with directory '/d'\n"
    )


def test_rm_removes_and_guards_directories() -> None:
    shell = shell_of("/a", "/b", "/d/x", "/e/")
    assert shell.run("rm a d nope") == (
        "rm: cannot remove 'd': Is a directory\n"
        "rm: cannot remove 'nope': No such file or directory\n"
    )
    assert shell.run("rm -f nope b") == ""
    assert shell.run("rm -d d") == "rm: cannot remove 'd': Directory not empty\n"
    assert shell.run("rm -d e") == ""
    assert shell.run("rm -rf d") == ""
    assert listing(shell) == []
    assert shell.run("rm") == "rm: missing operand\n"


def test_rm_does_not_take_the_ground_away() -> None:
    shell = shell_of("/a/b/c", cwd="/a/b")
    assert "refusing to remove '.' or '..'" in shell.run("rm -r .")
    assert "refusing to remove '.' or '..'" in shell.run("rm -r ..")
    assert "dangerous to operate recursively on '/'" in shell.run("rm -rf /")
    assert "the current directory is in it" in shell.run("rm -r /a")
    assert listing(shell) == ["/a/", "/a/b/", "/a/b/c"]


def test_find_lists_by_name_and_type() -> None:
    shell = shell_of("/a/x.txt", "/a/b/y.txt", "/a/b.d/", "/z", cwd="/a")
    assert shell.run("find") == ".\n./b\n./b/y.txt\n./b.d\n./x.txt\n"
    assert shell.run("find . -name '*.txt'") == "./b/y.txt\n./x.txt\n"
    assert shell.run("find / -type d -name 'b*'") == "/a/b\n/a/b.d\n"
    assert shell.run("find /a/b /z -iname 'Y*'") == "/a/b/y.txt\n"
    assert shell.run("find nope") == "find: 'nope': No such file or directory\n"
    assert "unknown predicate '-exec'" in shell.run("find . -exec ls")
    assert shell.run("find -name") == "find: missing argument to '-name'\n"


def test_grep_finds_lines() -> None:
    shell = shell_of("/d/", a="one\nTwo\nthree\n", **{"d/b": "two\n"})
    assert shell.run("grep o a") == "one\nTwo\n"
    assert shell.run("grep -n t a") == "3:three\n"
    assert shell.run("grep -in t a") == "2:Two\n3:three\n"
    assert shell.run("grep -v o a") == "three\n"
    assert shell.run("grep -c o a") == "2\n"
    assert shell.run("grep wo a d/b") == "a:Two\nd/b:two\n"
    assert shell.run("grep -r wo") == "./a:Two\n./d/b:two\n"
    assert shell.run("grep -rl wo /") == "/a\n/d/b\n"
    assert shell.run("grep wo d") == "grep: d: Is a directory\n"
    assert shell.run("grep wo nope") == "grep: nope: No such file or directory\n"
    assert "there is no standard input" in shell.run("grep wo")
    assert "not supported here; there are . [...] .*" in shell.run("grep 'o+' -E a")


def test_wc_counts() -> None:
    shell = shell_of(a="one two\nthree\n", b="ä")
    assert shell.run("wc a") == " 2  3 14 a\n"
    assert shell.run("wc -l a") == "2 a\n"
    assert shell.run("wc -w a b") == "3 a\n1 b\n4 total\n"
    assert shell.run("wc -c b") == "2 b\n"
    assert shell.run("wc -m b") == "1 b\n"
    assert shell.run("wc nope") == "wc: nope: No such file or directory\n"


def test_wildcards_stand_for_what_is_there() -> None:
    shell = shell_of("/a.txt", "/b.txt", "/.h.txt", "/d/c.txt", "/x*y")
    assert shell.run("echo *.txt") == "a.txt b.txt\n"
    assert shell.run("echo */*.txt /d/*") == "d/c.txt /d/c.txt\n"
    assert shell.run("echo [ab].txt ?") == "a.txt b.txt d\n"
    assert shell.run("echo '*.txt' *.md .h*") == "*.txt *.md .h.txt\n"
    assert shell.run("echo x'*'*") == "x*y\n"
    assert shell.run("echo */") == "d/\n"
    assert shell.run("mv *.txt d") == ""
    assert listing(shell) == ["/.h.txt", "/d/", "/d/a.txt", "/d/b.txt", "/d/c.txt", "/x*y"]


# --- Patterns -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "flags", "line", "found"),
    [
        ("", "", "anything", True),
        ("b.d", "", "abcde", True),
        ("b.d", "", "abd", False),
        ("^ab", "", "abc", True),
        ("^bc", "", "abc", False),
        ("bc$", "", "abc", True),
        ("ab$", "", "abab", True),
        ("ab$", "", "abc", False),
        ("^abc$", "", "abc", True),
        ("^abc$", "", "abcabc", False),
        ("a.*b.*c", "", "xaxxbxxcx", True),
        ("a.*b.*c", "", "acb", False),
        ("^a.*c$", "", "a b c", True),
        ("^a.*c$", "", "a b c d", False),
        ("a.*aa$", "", "aaa", True),
        ("a.*aa$", "", "aa", False),
        ("a$b", "", "a$b", True),
        ("[0-9][0-9]", "", "a 42", True),
        ("[^0-9]", "", "42", False),
        ("[[:digit:]]x", "", "4x", True),
        ("[]x]", "", "]", True),
        (r"a\.b", "", "axb", False),
        (r"a\|b", "", "xbx", True),
        ("a|b", "", "b", False),
        ("a|b", "E", "b", True),
        (r"a\|b", "E", "a|b", True),
        ("a+b", "", "a+b", True),
        ("*a", "", "*a", True),
        ("a.b", "F", "axb", False),
        ("a.b", "F", "xa.b", True),
        ("ABC", "i", "abc", True),
        ("cat", "w", "concatenate", False),
        ("cat", "w", "a cat.", True),
        ("cat", "x", "cat ", False),
        ("cat", "x", "cat", True),
    ],
)
def test_patterns_match_as_greps_do(pattern: str, flags: str, line: str, found: bool) -> None:
    assert line_matcher(pattern, flags)(line) == found


@pytest.mark.parametrize(
    ("pattern", "flags"),
    [("a*", ""), ("a+", "E"), ("(a)", "E"), (r"\(a\)", ""), ("[a", ""), ("a\\", ""),
     (r"\1", ""), ("[[:nope:]]", ""), ("[z-a]", ""), ("a" * 201, "")],
)  # fmt: skip
def test_other_patterns_are_refused(pattern: str, flags: str) -> None:
    with pytest.raises(PatternError):
        line_matcher(pattern, flags)


@given(
    st.lists(st.sampled_from(["a", "b", ".", ".*", "[ab]", "[^a]"]), max_size=8).map("".join),
    st.booleans(),
    st.booleans(),
    st.text(alphabet="abc", max_size=12),
)
def test_patterns_agree_with_pythons_expressions(
    inner: str, at_start: bool, at_end: bool, line: str
) -> None:
    pattern = "^" * at_start + inner + "$" * at_end
    assert line_matcher(pattern, "")(line) == (re.search(pattern, line) is not None)


# --- Bounds -------------------------------------------------------------------------------------


def test_a_tree_has_bounds_and_stays_whole_beyond_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_module, "MAX_CHARACTERS", 100)
    monkeypatch.setattr(shell_module, "MAX_ENTRIES", 5)
    shell = shell_of(a="x" * 50)
    assert shell.run("cp a b") == "cp: cannot create '/b': No space left on device\n"
    assert shell.run("cat a >> a") == "sh: a: No space left on device\n"
    assert shell.run("mkdir 1 2 3 4").count("No space left on device") == 1
    assert listing(shell) == ["/1/", "/2/", "/3/", "/a"]


def test_names_have_bounds_too() -> None:
    assert shell_of().run(f"touch {'x' * 300}").endswith("x': File name too long\n")


def test_a_move_that_does_not_fit_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = shell_of("/a/b/c", "/long/")
    before = dict(shell.tree.nodes)
    monkeypatch.setattr(shell_module, "MAX_PATH", 10)
    assert shell.run("mv a long") == "mv: cannot move 'a' to '/long/a': File name too long\n"
    assert shell.tree.nodes == before


def test_long_output_is_cut_off_and_says_so() -> None:
    shell = shell_of(a="x" * 30_000)
    shown = shell.run("cat a")
    assert shown.endswith("\n[10000 more characters are not shown]\n")
    assert len(shown) < 21_000


def test_a_command_that_writes_too_much_is_stopped() -> None:
    shell = shell_of(a="x" * 100_000)
    assert shell.run("cat a a a a a > b") == "sh: the command writes too much; it was stopped\n"
    assert listing(shell) == ["/a"]


@pytest.mark.parametrize(
    "command",
    [
        "cat" + " a" * 400,
        "cp -r d" + " d" * 300 + " e",
        "echo " + "*/../" * 300 + "*",
        "grep -r '" + "." * 199 + "z' / / / / / / / /",
        "grep '" + ".*x" * 60 + "$' a",
        "find " + "/ " * 400,
        "find / -name '" + "*x" * 100 + "'",
        "ls -lR " + "/ " * 400,
        "wc" + " a" * 400,
        "mkdir -p " + "x/" * 4000,
        "echo " + "*" * 5000,
        "touch " + " ".join(f"n{i}" for i in range(2000)),
    ],
)
def test_no_command_takes_long_or_writes_without_end(command: str) -> None:
    shell = shell_of("/e/", *(f"/d/{i}/" for i in range(100)), a="xy " * 40_000)
    started = time.process_time()
    shown = shell.run(command)
    assert time.process_time() - started < 5.0
    assert len(shown) < 21_000


@given(st.text(max_size=40))
def test_wildcards_do_not_fail_on_any_name(pattern: str) -> None:
    assert wildcard(pattern)("name") in (True, False)


@given(
    st.one_of(
        st.text(max_size=60),
        st.tuples(
            st.sampled_from(sorted(COMMANDS)),
            st.text(alphabet="ab/.*?[]-rnpe '\"\\>|&$~{},^+()0\n", max_size=40),
        ).map(" ".join),
    )
)
def test_whatever_is_run_there_is_text_to_show(command: str) -> None:
    assert isinstance(shell_of("/a/b/c", "/b").run(command), str)
