"""`heldout doctor TOKENIZER`: which way of making segments a chat template allows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heldout.errors import InvalidInput

if TYPE_CHECKING:
    from heldout.rendering.chat_templates import ChatRenderer
    from heldout.rendering.examine import Examination


@click.command("doctor")
@click.argument("tokenizer")
@click.option("--template", metavar="FILE", help="A Jinja chat template to use instead.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every finding in full.")
def command(tokenizer: str, template: str | None, as_json: bool) -> None:
    """Say which `segments` of a training rollout the chat template of TOKENIZER allows.

    TOKENIZER is a folder, or a name on the Hugging Face hub that has been downloaded before. Exits
    with 1 if no mode does all kinds of conversation that the template does.
    """
    from heldout.rendering.chat_templates import ChatRenderer
    from heldout.rendering.examine import examine
    from heldout.types import Message

    render = ChatRenderer(_load(tokenizer), chat_template=_read(template))
    try:
        render([Message("user", "?")], True)
    except Exception as problem:  # noqa: BLE001 - templates raise what they like
        raise InvalidInput(
            f"the chat template of {template or tokenizer} cannot render a user's question: "
            f"{type(problem).__name__}: {problem}"
        ) from None
    found = examine(render, render.decode)
    if as_json:
        _print_json(tokenizer, found, render)
    else:
        _print(tokenizer, found, render)
    if found.recommended is None:
        raise click.exceptions.Exit(1)


def _load(name: str) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as missing:
        raise InvalidInput(
            f"reading a tokenizer needs transformers ({missing.name} is missing): "
            "pip install 'heldout[local]'"
        ) from None
    try:
        # Only what is here already: a doctor does not send for gigabytes.
        return AutoTokenizer.from_pretrained(name, local_files_only=True)
    except Exception as problem:  # noqa: BLE001 - whatever it is, there is no tokenizer
        if Path(name).is_dir():
            first = (str(problem).strip() or type(problem).__name__).splitlines()[0]
            raise InvalidInput(f"cannot load a tokenizer from {name}: {first}") from None
        if Path(name).exists() or name.startswith(("/", ".", "~")):
            raise InvalidInput(f"there is no folder with a tokenizer at {name}") from None
        raise InvalidInput(
            f"{name!r} is no folder, and no tokenizer of that name has been downloaded: "
            f"`hf download {name}` does that, if it is on the Hugging Face hub"
        ) from None


def _read(template: str | None) -> str | None:
    if template is None:
        return None
    try:
        return Path(template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidInput(f"cannot read the template {template}: {problem}") from None


def _print_json(tokenizer: str, found: Examination, render: ChatRenderer) -> None:
    from heldout.cli.render import print_json

    print_json(
        {
            "tokenizer": tokenizer,
            "end_of_turn": [render.spell([end]) for end in found.ends],
            "as_text": render.dialect.as_text,
            "recommended": found.recommended,
            "advice": found.advice,
            "findings": found.findings,
        }
    )


def _print(tokenizer: str, found: Examination, render: ChatRenderer) -> None:
    from heldout.cli.render import as_line, as_text, make_console, make_table

    console = make_console()
    console.print(as_line(tokenizer, "bold"), soft_wrap=True)
    table = make_table()
    table.add_column("", overflow="fold")
    for mode in ("suffix", "boundary"):
        table.add_column(mode, no_wrap=True)
    words = {
        True: ("works", "green"),
        False: ("does not", "red"),
        None: ("not supported", "dim"),
    }
    for kind in dict.fromkeys(finding.kind for finding in found.findings):
        row = {f.segments: words[f.ok] for f in found.findings if f.kind == kind}
        table.add_row(kind, *(as_text(*row[mode]) for mode in ("suffix", "boundary")))
    console.print(table)
    ends = " or ".join(render.spell([end]) for end in found.ends)
    console.print(as_line(f"A turn ends in {ends or 'nothing that could be found out'}"))
    eos = render.tokenizer.eos_token_id
    if any(end != eos for end in found.ends):
        console.print(
            as_line(
                f"Generation has to stop there; the tokenizer's own end token is "
                f"{render.tokenizer.eos_token}",
                "yellow",
            )
        )
    if render.dialect.as_text:
        written = ", ".join(render.dialect.as_text)
        console.print(as_line(f"Written as text, not by the template: {written}"))
    for line in _reasons(found):
        console.print(as_line(line, "dim"), soft_wrap=True)
    style = "bold" if found.recommended else "bold red"
    console.print(as_line(found.advice, style), soft_wrap=True)


def _reasons(found: Examination) -> list[str]:
    """Why what does not work does not, or is not there: each reason once."""
    reasons: dict[str, list[str]] = {}
    for finding in found.findings:
        if finding.ok:
            continue
        reason = str(finding.why)
        if finding.ok is False:
            reason = f"{finding.segments}: {reason}"
        if finding.position is not None:
            reason += f", {finding.so_far!r} becomes {finding.rendered!r}"
        reasons.setdefault(reason, []).append(finding.kind)
    return [f"{reason} ({', '.join(dict.fromkeys(kinds))})" for reason, kinds in reasons.items()]
