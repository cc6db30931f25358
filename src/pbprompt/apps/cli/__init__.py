"""The command line: verbs -> functions. Each verb is one file here and imports what it needs when it runs."""

import inspect
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from pbprompt.apps.cli import (
    backbones,
    cache,
    datasets,
    doctor,
    evaluate,
    explain,
    export,
    fit,
    look,
    methods,
    model,
    monitor,
    next_images,
    predict,
    prompts,
    reproduce,
    runs,
    serve,
)
from pbprompt.errors import BrokenInstallError, InputError, one_line, warn_in_sentences

RESEARCH = "research"  # the group of verbs for those who study methods


@contextmanager
def _in_short() -> Iterator[None]:
    """A wrong option is repeated in what is said of it: however long it is, that is not."""
    try:
        yield
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's own
            error.message = one_line(error.message)  # type: ignore[attr-defined]
        raise


class _Commands(TyperGroup):
    """The verbs."""

    def make_context(self, info_name: str | None, args: list[str], *given: Any, **named: Any) -> Any:
        with _in_short():
            return super().make_context(info_name, _plugins_first(args), *given, **named)

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order in which they are needed; typer has groups of verbs last."""
        names = super().list_commands(ctx)
        names.remove("model")
        names.insert(names.index("explain"), "model")
        return names

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if (
            command is not None and command.hidden and sys.stderr.isatty()
        ):  # what scripts read stays as it was
            print(f"pbprompt: `{name}` is `pbprompt {RESEARCH} {name}` now", file=sys.stderr)
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        with _in_short():
            return super().invoke(ctx)


def _plugins_first(args: list[str]) -> list[str]:
    """`--plugin FILE` before the verb, wherever it stands: every verb takes it."""
    plugins, others, rest = [], [], iter(args)
    for word in rest:
        if word == "--":
            others += [word, *rest]
        elif word == "--plugin" and (file := next(rest, None)) is not None:
            plugins += [word, file]
        else:
            (plugins if word.startswith("--plugin=") else others).append(word)
    return plugins + others


app = typer.Typer(
    name="pbprompt",
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from pbprompt import __version__

        typer.echo(f"pbprompt {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
    plugin: list[str] = typer.Option(
        [], help="A Python file with methods of your own, of any verb; may be repeated."
    ),
) -> None:
    """Few-shot image classifiers from CLIP-like models that know what they do not know.

    Start with [bold]pbprompt predict IMAGE --classes cat,dog,car[/bold]: no training, no download.
    """
    if debug:
        os.environ["PBPROMPT_DEBUG"] = "1"
    if plugin:
        from pbprompt.registry import PLUGINS, methods

        os.environ[PLUGINS] = os.pathsep.join(str(Path(file).expanduser().resolve()) for file in plugin)
        methods()  # what is wrong with a file is said before anything is done


for verb in (look.look, fit.fit, evaluate.evaluate, predict.predict):
    app.command()(verb)
app.command("next")(next_images.next_images)
for verb in (monitor.monitor, explain.explain, export.export, serve.serve, doctor.doctor):
    app.command()(verb)
for group in (model, backbones, cache):
    app.add_typer(group.app, name=group.__name__.rpartition(".")[2])

research = typer.Typer(
    help="Methods, benchmarks, and the runs behind tables: for those who study them.", no_args_is_help=True
)
app.add_typer(research, name=RESEARCH)
for place, former in ((research, False), (app, True)):
    for verb in (methods.methods, reproduce.reproduce, runs.report, prompts.captions, prompts.prompts):
        place.command(hidden=former)(verb)
    for group in (datasets, runs):
        place.add_typer(group.app, name=group.__name__.rpartition(".")[2], hidden=former)


def _wrap_by_width(verbs: typer.Typer) -> None:
    """Make a paragraph of help one line, which the terminal breaks: typer keeps the source's line breaks."""
    for verb in verbs.registered_commands:
        text = verb.help or inspect.getdoc(verb.callback) or ""
        verb.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    for group in verbs.registered_groups:
        if group.typer_instance is not None:
            _wrap_by_width(group.typer_instance)


_wrap_by_width(app)


def main() -> None:
    """Run the command line: a known error is one line and exit code 2 (and typer makes Ctrl-C code 130).

    So is what the system refuses, such as a file on a full or read-only disk.
    """
    warn_in_sentences()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that the terminal cannot show ends nothing
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    except (InputError, BrokenInstallError, OSError) as error:
        if os.environ.get("PBPROMPT_DEBUG"):
            raise
        message = str(error)
        if isinstance(error, OSError) and error.strerror:
            message = f"{error.filename or 'a file'}: {error.strerror}: check the path and the disk"
        print(f"pbprompt: {one_line(message)}", file=sys.stderr)
        sys.exit(2)
