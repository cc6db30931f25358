"""Checkpoints and the log: everything comes back, and what cannot be used is refused in words."""

import json

import pytest
import torch
from safetensors.torch import load, save_file

from pbprompt.errors import InputError
from pbprompt.learners.method import MethodConfig
from pbprompt.learners.trained import Trained
from pbprompt.prompts.loop.checkpoint import (
    CHECKPOINT,
    Journal,
    Tally,
    checkpoint_step,
    read_checkpoint,
    write_checkpoint,
)
from pbprompt.prompts.loop.step import make_optimiser

TALLY = Tally(3, {"total": 0.1 + 0.2}, [{"total": 1 / 3}])


class Line(Trained):
    def __init__(self, config, backbone, size=3):
        super().__init__(config, backbone)
        self.weight = torch.nn.Parameter(torch.zeros(size))
        self.unused = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("memory", torch.zeros(4))


def step(method, optimiser, target):
    optimiser.zero_grad()
    (method.weight - target).square().sum().backward()
    optimiser.step()


def made(backbone, optimiser="adamw", **options):
    config = MethodConfig(optimiser=optimiser, learning_rate=0.1)
    method = Line(config, backbone, **options)
    return method, make_optimiser(method)


@pytest.fixture(params=["sgd", "adamw"])
def kind(request):
    return request.param


def test_a_run_goes_on_to_the_same_bits(tiny_vit, tmp_path, kind):
    path = tmp_path / "checkpoint.safetensors"
    method, optimiser = made(tiny_vit, kind)
    method.memory += 7
    for target in (1.0, 2.0):
        step(method, optimiser, target)
    write_checkpoint(path, method, optimiser, 2, "run", TALLY)
    again, its_optimiser = made(tiny_vit, kind)
    assert read_checkpoint(path, again, its_optimiser, "run") == (2, TALLY)
    assert torch.equal(again.memory, method.memory)
    for target in (3.0, 4.0):
        step(method, optimiser, target)
        step(again, its_optimiser, target)
    assert torch.equal(again.weight, method.weight)


def test_the_optimisers_state_matters(tiny_vit, tmp_path, kind):
    """The test above can fail: parameters alone do not give the same bits."""
    method, optimiser = made(tiny_vit, kind)
    for target in (1.0, 2.0):
        step(method, optimiser, target)
    again, its_optimiser = made(tiny_vit, kind)
    again.load_state_dict(method.state_dict())
    step(method, optimiser, 3.0)
    step(again, its_optimiser, 3.0)
    assert not torch.equal(again.weight, method.weight)


def test_no_step_taken_yet(tiny_vit, tmp_path):
    method, optimiser = made(tiny_vit)
    write_checkpoint(tmp_path / "c", method, optimiser, 0, "run", Tally())
    assert read_checkpoint(tmp_path / "c", *made(tiny_vit), "run") == (0, Tally())


def test_another_runs_checkpoint_is_refused(tiny_vit, tmp_path):
    method, optimiser = made(tiny_vit)
    write_checkpoint(tmp_path / "c", method, optimiser, 1, "one", TALLY)
    fresh, its_optimiser = made(tiny_vit)
    fresh.memory += 1
    with pytest.raises(InputError, match=r"belongs to another run .* choose another folder"):
        read_checkpoint(tmp_path / "c", fresh, its_optimiser, "two")
    assert fresh.memory.tolist() == [1] * 4


def test_damaged_files_are_refused(tiny_vit, tmp_path):
    path = tmp_path / "c"
    method, optimiser = made(tiny_vit)
    step(method, optimiser, 1.0)
    write_checkpoint(path, method, optimiser, 1, "run", TALLY)
    good = path.read_bytes()
    tensors = load(good)
    for content in (b"", good[:5], good[: len(good) // 2], good[:-1], b"\0" * 100, b"\xff" * 64):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"not a usable checkpoint .* remove it to start anew") as error:
            read_checkpoint(path, *made(tiny_vit), "run")
        assert "\n" not in str(error.value) and str(path) in str(error.value)
    for about in (None, {}, {"pbprompt": "no"}, {"pbprompt": "[]"}, {"pbprompt": '{"run": "run"}'}):
        save_file(tensors, path, about)
        with pytest.raises(InputError, match="not a usable checkpoint"):
            read_checkpoint(path, *made(tiny_vit), "run")


def test_other_shapes_are_refused(tiny_vit, tmp_path):
    method, optimiser = made(tiny_vit)
    write_checkpoint(tmp_path / "c", method, optimiser, 1, "run", TALLY)
    with pytest.raises(InputError, match="not a usable checkpoint") as error:
        read_checkpoint(tmp_path / "c", *made(tiny_vit, size=5), "run")
    assert "\n" not in str(error.value)


def test_a_kill_while_writing_keeps_the_old_file(tiny_vit, tmp_path, monkeypatch):
    path = tmp_path / "c"
    method, optimiser = made(tiny_vit)
    write_checkpoint(path, method, optimiser, 1, "run", TALLY)
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(path, method, optimiser, 2, "run", TALLY)
    assert read_checkpoint(path, *made(tiny_vit), "run")[0] == 1
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["c"]


def test_values_that_are_no_numbers_are_refused(tiny_vit, tmp_path):
    method, optimiser = made(tiny_vit)
    method.memory[0] = torch.inf
    write_checkpoint(tmp_path / "c", method, optimiser, 2, "run", TALLY)
    with pytest.raises(InputError, match="parameters/memory holds NaN or infinite values"):
        read_checkpoint(tmp_path / "c", method, optimiser, "run")


def test_the_step_of_a_folder_is_none_where_a_run_would_start_anew(tmp_path):
    assert checkpoint_step(tmp_path) is None
    (tmp_path / CHECKPOINT).write_bytes(b"cut short")
    assert checkpoint_step(tmp_path) is None


# ---------------------------------------------------------------- the log


def lines(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def written(folder, *steps, start=0):
    journal = Journal(folder, start)
    for step in steps:
        journal.write(step, {"total": step / 2})
    journal.close()


def test_one_line_a_record(tmp_path):
    written(tmp_path / "new" / "run", 10, 20)
    assert lines(tmp_path / "new" / "run") == [{"step": 10, "total": 5.0}, {"step": 20, "total": 10.0}]


def test_a_line_is_there_as_soon_as_it_is_written(tmp_path):
    journal = Journal(tmp_path)
    journal.write(1, {"total": 2.0})
    assert lines(tmp_path) == [{"step": 1, "total": 2.0}]
    journal.close()


def test_floats_keep_every_bit(tmp_path):
    value = 0.1 + 0.2
    journal = Journal(tmp_path)
    journal.write(1, {"total": value})
    journal.close()
    assert lines(tmp_path)[0]["total"] == value


def test_going_on_drops_what_came_after(tmp_path):
    written(tmp_path, 10, 20, 20, 30)
    written(tmp_path, 30, start=20)
    assert [line["step"] for line in lines(tmp_path)] == [10, 20, 20, 30]


def test_a_fresh_start_drops_all(tmp_path):
    written(tmp_path, 10, 20)
    written(tmp_path, 5)
    assert [line["step"] for line in lines(tmp_path)] == [5]


def test_torn_and_foreign_lines_go(tmp_path):
    written(tmp_path, 10, 20)
    whole = (tmp_path / "log.jsonl").read_bytes()
    torn = [
        whole + b'{"step": 30, "to',
        whole + b'{"step": 20, "total": 1.0}',  # whole, but its line end is missing
        whole + b"[]\nnull\n{}\nnot json\n",
        whole + b"\xff\xfe\x00\n",
    ]
    for content in torn:
        (tmp_path / "log.jsonl").write_bytes(content)
        written(tmp_path, 40, start=30)
        assert [line["step"] for line in lines(tmp_path)] == [10, 20, 40]


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(None, 1)
    assert list(tmp_path.iterdir()) == []
