from dataclasses import dataclass

import typer
from typer.testing import CliRunner

from pbprompt.apps.cli.options import with_options


@dataclass(frozen=True, kw_only=True)
class Greeting:
    name: str = typer.Argument(..., help="Whom to greet.")
    times: int = typer.Option(1, min=1)
    marks: list[str] = typer.Option([], "--mark")


@with_options(Greeting)
def greet(options: Greeting) -> None:
    """Greet somebody."""
    print(f"{options.name} × {options.times}{''.join(options.marks)}")


def test_the_fields_are_the_options():
    app = typer.Typer()
    app.command()(greet)
    ask = CliRunner().invoke
    assert ask(app, ["you", "--times", "2", "--mark", "!", "--mark", "?"]).output == "you × 2!?\n"
    assert ask(app, ["you"]).output == "you × 1\n"
    assert ask(app, ["--times", "2"]).exit_code == 2 and ask(app, ["you", "--times", "0"]).exit_code == 2
    shown = ask(app, ["--help"]).output
    assert "Greet somebody." in shown and "Whom to greet." in shown
