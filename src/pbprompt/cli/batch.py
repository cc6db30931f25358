"""What `predict` is given and does with its answers: shows them, or writes them and goes on after an end."""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer

from pbprompt.cli.output import print_json, tell
from pbprompt.errors import InputError, install_command

if TYPE_CHECKING:
    from pbprompt.batch import Executor, Job
    from pbprompt.batch.on_ray import Load
    from pbprompt.batch.output import Output
    from pbprompt.data.stream import Record

EXECUTORS = ("local", "ray")
STDIN = "-"


def print_answers(job: "Job", as_json: bool, table: Callable[[list[tuple[str, Any]]], None]) -> None:
    """Each as a line of JSON, or all in a table; exit code 1: some images could not be read."""
    from pbprompt.batch import answers

    rows: list[tuple[str, Any]] = []
    images = failures = 0
    for answer in answers(job, progress=not as_json):
        images += 1
        if isinstance(answer.said, InputError):
            failures += 1
            tell(answer.said)
        elif as_json:
            print_json({"image": answer.name, **answer.said.to_dict()})
        else:
            rows.append((answer.name, answer.said))
    if rows:
        table(rows)
    if failures:
        tell(f"{failures} of {images} images could not be read")
        raise typer.Exit(1)


def written(job: "Job", output: "Output", executor: "Executor") -> None:
    """Write the answers, or what an earlier process left of them, and say so; exit code 1: some failed."""
    from pbprompt.batch import run

    with output.opened(job.identity(output.suffix)):
        before = output.rows + output.failures
        if output.damaged:
            tell(f"{output.damaged:,} parts of {output.path} were changed or removed: they are made again")
        if output.complete(job.stream.units()):
            tell(f"{output.path} is complete already")
        else:
            if before:
                tell(f"going on after the {before:,} images that are answered already")
            try:
                run(job, output, executor, progress=True)
            except KeyboardInterrupt:
                done = output.rows + output.failures
                tell(f"stopped after {done:,} images: the same command goes on from there")
                raise
        rows, failures = output.rows, output.failures
        if rows:
            tell(f"saved: {output.path}, with {rows:,} answer{'s' if rows > 1 else ''}")
        if failures:
            where = output.failed_path if output.whole else f"{output.path}/_failed-*{output.suffix}"
            tell(f"{failures:,} of {rows + failures:,} images could not be read: {where} says why")
            raise typer.Exit(1)


def output_of(
    out: str | None, as_json: bool, features: bool, executor: str, ray_address: str | None
) -> "Output | None":
    """Where to write, if anywhere; options that contradict it are refused."""
    from pbprompt.batch.output import Output

    if executor not in EXECUTORS:
        raise InputError(f"--executor {executor}: choose {' or '.join(EXECUTORS)}")
    if ray_address and executor != "ray":
        raise InputError("--ray-address: only with --executor ray")
    if out is None:
        for option, given in (("--features", features), ("--executor", executor != "local")):
            if given:
                raise InputError(f"{option}: says how --out is written: give both")
        return None
    if as_json:
        raise InputError("--json prints answers and --out writes them: choose one")
    try:
        return Output(out)
    except InputError as error:
        raise InputError(f"--out {error}") from None


def executor_named(name: str, address: str | None, device: str, sent: "Callable[[], Load]") -> "Executor":
    """What makes the parts; `sent` is how another machine comes by the model."""
    from pbprompt.batch import here
    from pbprompt.batch.on_ray import on_ray

    if name == "local":
        return here
    try:
        import_module("ray.data")
    except ImportError as error:
        raise InputError(f"--executor ray: {error}: {install_command('ray')}, or choose local") from None
    return on_ray(address, sent(), device)


def sources(words: Sequence[str], allow_urls: bool) -> "list[str | Record]":
    """What comes from standard input is read; addresses must be allowed."""
    from pbprompt.data.stream import Record
    from pbprompt.data.stream.places import is_address

    if words.count(STDIN) > 1:
        raise InputError(f"{STDIN} is given twice: standard input holds one image")
    for word in words:
        if is_address(word) and not (allow_urls or word.startswith("file://")):
            raise InputError(f"{word}: an address: add --allow-urls to fetch images from elsewhere")
    return [word if word != STDIN else Record(STDIN, _read_stdin()) for word in words]


def _read_stdin() -> bytes | InputError:
    from pbprompt.data.stream.places import MOST_BYTES

    if sys.stdin.isatty():
        return InputError(f"{STDIN}: standard input is a terminal: pipe an image in, such as `< photo.jpg`")
    content = sys.stdin.buffer.read(MOST_BYTES + 1)
    if not content:
        return InputError(f"{STDIN}: nothing came from standard input: pipe an image in")
    if len(content) > MOST_BYTES:
        return InputError(
            f"{STDIN}: more than {MOST_BYTES >> 20} MiB came from standard input: give one image"
        )
    return content
