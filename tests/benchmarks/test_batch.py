"""The measurement of a batch measures what it says, on a tiny tower."""

import io

from benchmarks import batch
from benchmarks.speed.pictures import picture
from pbprompt.batch import job
from pbprompt.model.tuned import TunedModel


def test_the_three_are_measured_in_one_turn(tiny_vit, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(job, "CACHED_UNITS", 0)
    folder, content = tmp_path / "photos", io.BytesIO()
    folder.mkdir()
    picture(0).save(content, "JPEG")
    for number in range(8):
        (folder / f"{number}.jpg").write_bytes(content.getvalue())
    turns = batch.measure(TunedModel.zero_shot(tiny_vit, ["cat", "dog"]), folder, turns=1)
    assert list(turns[0]) == ["decoding", "tower", "whole"]
    assert all(cost.rate > 0 and cost.processor > 0 for cost in turns[0].values())
    by_way = batch.ways([content.getvalue()], 32)
    assert by_way["Pillow"][1] == 0 and by_way.get("simplejpeg", (0, 0))[1] == 0, "to the bit"
    batch.report(turns, by_way)
    assert "1.000 ×" in capsys.readouterr().out
