"""Lines for a log: now and then, and none where a bar is seen."""

import io

import pytest
from rich.console import Console

from pbprompt.vision.features import progress
from pbprompt.vision.features.progress import LINE_SECONDS, LogLines, Progress


@pytest.mark.parametrize(
    ("terminal", "shown", "expected"), [(False, True, "at 7\nat 12\n"), (True, True, ""), (False, False, "")]
)
def test_a_line_every_few_seconds(terminal, shown, expected):
    now, file = [0.0], io.StringIO()
    lines = LogLines(Console(file=file, force_terminal=terminal), shown=shown, clock=lambda: now[0])
    for second in range(14):
        now[0] = float(second)
        if second in (1, 2, 7, 8, 11, 12, 13):
            lines.say(lambda: f"at {now[0]:.0f}")
    assert LINE_SECONDS == 5 and file.getvalue() == expected


def test_encoding_tells_a_log_how_far_it_is(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with Progress("encoding images", shown=True) as bar:
        bar.expect(1200)
        bar.advance(300)
    assert "encoding images: 300 of 1,200, " in capsys.readouterr().err
