"""The training loop: it learns, repeats itself, survives a kill to the same bits, and stops at NaN."""

import hashlib
import json
import shutil

import pytest
import torch
from safetensors.torch import load

from pbprompt.errors import InputError
from pbprompt.learners.fit_options import FitOptions
from pbprompt.learners.method import MethodConfig, build_method, make_config
from pbprompt.learners.trained import Trained
from pbprompt.prompts.loop import loop
from pbprompt.prompts.loop import step as step_module
from pbprompt.prompts.loop.checkpoint import checkpoint_step
from pbprompt.prompts.loop.loop import DivergedError, Run, train
from pbprompt.prompts.loop.step import learning_rate
from pbprompt.prompts.pbprompt.model import PBPrompt
from pbprompt.seeding import stream
from pbprompt.vision.features import progress
from pbprompt.vision.features.cache import Features
from pbprompt.vision.towers.backbone import Encoded

CLASSES = ("cat", "dog", "car")
OPTIMISERS = ("sgd", "adamw")
COUNT, BATCH, EPOCHS = 19, 4, 6  # 4 steps per epoch; looks at 10 and at every epoch's end


def data_of(seed=0):
    """Images near their class's own direction, patches in half precision as the bank gives them."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(COUNT) % len(CLASSES)
    centres = torch.randn(len(CLASSES), 32, generator=generator)
    images = centres[labels] + 0.3 * torch.randn(COUNT, 32, generator=generator)
    patches = images[:, None] + 0.3 * torch.randn(COUNT, 3, 32, generator=generator)
    return Features(images, patches.half(), labels)


def epochs_of(epoch):
    """Every epoch has views of its own."""
    data = data_of()
    drift = 0.01 * torch.randn(data.global_.shape, generator=stream(0, "view", epoch))
    return Features(data.global_ + drift, data.patches, data.labels)


def made(backbone, *overrides, kind=PBPrompt):
    config = make_config(PBPrompt, overrides=[f"batch_size={BATCH}", *overrides])
    method = build_method(kind, config, backbone, seed=1)
    method.prepare(CLASSES, "")
    return method


def run_of(folder=None, **options):
    run = {name: options.pop(name) for name in ("epochs", "identity", "budget") if name in options}
    given = FitOptions(**({"seed": 5, "folder": folder, "progress": False} | options))
    return Run(**({"epochs": EPOCHS, "options": given, "identity": "this"} | run))


def log_of(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def assert_same_parameters(one, other):
    for key, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[key]), key


@pytest.fixture(scope="module")
def uninterrupted(tiny_vit, tmp_path_factory):
    """(method, last terms, log) of a whole run."""
    folder = tmp_path_factory.mktemp("whole")
    method = made(tiny_vit)
    last = train(method, epochs_of, COUNT, run_of(folder))
    return method, last, log_of(folder)


@pytest.fixture(scope="module")
def whole_runs(tiny_vit, tmp_path_factory):
    """The same by the name of the optimiser."""
    made_by = {}
    for optimiser in OPTIMISERS:
        folder, method = tmp_path_factory.mktemp(optimiser), made(tiny_vit, f"optimiser={optimiser}")
        made_by[optimiser] = method, train(method, epochs_of, COUNT, run_of(folder)), log_of(folder)
    return made_by


# ---------------------------------------------------------------- learning and the log


def test_the_loss_falls(uninterrupted):
    _, last, log = uninterrupted
    losses = [line["total"] for line in log if "total" in line]
    assert losses[-1] < 0.5 * losses[0]
    assert last["accuracy"] > 0.9


def test_the_log_has_every_term_and_every_epoch(uninterrupted):
    _, last, log = uninterrupted
    steps = [line["step"] for line in log if "total" in line]
    assert steps == [4, 8, 10, 12, 16, 20, 24]
    assert {"total", "nll", "kl", "transport", "accuracy"} < set(log[0])
    ends = [line for line in log if "epoch" in line]
    assert [(line["step"], line["epoch"]) for line in ends] == [(4 * (e + 1), e) for e in range(EPOCHS)]
    config = make_config(PBPrompt)
    assert [line["learning_rate"] for line in ends] == [
        learning_rate(config, e, EPOCHS) for e in range(EPOCHS)
    ]
    assert {"posterior_std", "sampled_cosine"} < set(ends[0])
    assert last["sampled_cosine"] == ends[-1]["sampled_cosine"]


def test_the_same_seed_gives_the_same_bits(tiny_vit, uninterrupted):
    method, last, _ = uninterrupted
    again = made(tiny_vit)
    torch.rand(3)  # the global generator is nobody's business
    assert train(again, epochs_of, COUNT, run_of()) == last
    assert_same_parameters(method, again)
    other = made(tiny_vit)
    assert train(other, epochs_of, COUNT, run_of(seed=6)) != last


class Seen(PBPrompt):
    """Notes the batches; its name is its parent's."""

    def loss(self, batch, generator, examples):
        self.__dict__.setdefault("seen", []).append((batch, examples, generator.initial_seed()))
        return super().loss(batch, generator, examples)


def test_batches_are_epochs_without_the_short_last_one(tiny_vit):
    method = made(tiny_vit, kind=Seen)
    train(method, epochs_of, COUNT, run_of(epochs=3))
    assert len(method.seen) == 12
    assert len({noise for _, _, noise in method.seen}) == 12  # every step has noise of its own
    orders = []
    for epoch in range(3):
        views = epochs_of(epoch)
        rows = []
        for batch, examples, _ in method.seen[4 * epoch : 4 * epoch + 4]:
            assert examples == COUNT and len(batch.labels) == BATCH
            for image, patches, label in zip(*batch.images, batch.labels, strict=True):
                (row,) = (views.global_ == image).all(1).nonzero().flatten().tolist()
                assert torch.equal(views.patches[row], patches) and views.labels[row] == label
                rows.append(row)
        assert len(set(rows)) == 16  # each image at most once
        orders.append(rows)
    assert orders[0] != orders[1] != orders[2]


def test_fewer_images_than_a_batch(tiny_vit):
    method = made(tiny_vit, "batch_size=32", kind=Seen)
    train(method, epochs_of, COUNT, run_of(epochs=2))
    assert [len(batch.labels) for batch, _, _ in method.seen] == [COUNT, COUNT]


def test_one_step_is_the_optimisers(tiny_vit):
    """The first step by hand: SGD at the warm-up's rate, the gradient clipped."""
    settings = ("optimiser=sgd", "weight_decay=0.1", "clip_norm=0.01")
    method, copy = made(tiny_vit, *settings), made(tiny_vit, *settings)
    train(method, epochs_of, COUNT, run_of(max_steps=1))
    data = epochs_of(0)
    rows = torch.randperm(COUNT, generator=stream(5, "order", 0))[:BATCH]
    images = Encoded(data.global_[rows], data.patches[rows])
    terms = copy.loss(loop.Batch(images, data.labels[rows]), stream(5, "noise", 0), COUNT)
    parameters = dict(copy.named_parameters())
    gradients = torch.autograd.grad(terms["total"], list(parameters.values()))
    norm = torch.sqrt(sum(g.double().square().sum() for g in gradients)).item()
    assert norm > 0.01
    for (name, value), gradient in zip(parameters.items(), gradients, strict=True):
        wanted = value - 1e-5 * (gradient * 0.01 / (norm + 1e-6) + 0.1 * value)
        torch.testing.assert_close(method.get_parameter(name), wanted, rtol=1e-6, atol=1e-9, msg=name)


def test_begin_is_called_once_with_all_images(tiny_vit, tmp_path):
    class Beginner(PBPrompt):
        def __init__(self, config, backbone):
            super().__init__(config, backbone)
            self.register_buffer("memory", torch.zeros(32))

        def begin_on(self, views, seed):
            images, labels, _ = views(0)
            self.memory += images.global_.sum(0) + len(labels) + seed

    method = made(tiny_vit, kind=Beginner)
    train(method, epochs_of, COUNT, run_of(tmp_path, max_steps=2))
    wanted = epochs_of(0).global_.sum(0) + COUNT + 5
    assert torch.equal(method.memory, wanted)
    again = made(tiny_vit, kind=Beginner)
    train(again, epochs_of, COUNT, run_of(tmp_path, max_steps=3))
    assert torch.equal(again.memory, wanted)


def test_max_steps(tiny_vit, tmp_path, uninterrupted):
    method = made(tiny_vit, kind=Seen)
    last = train(method, epochs_of, COUNT, run_of(tmp_path, max_steps=6))
    assert len(method.seen) == 6
    assert [line["step"] for line in log_of(tmp_path)] == [4, 4, 6]
    assert last["posterior_std"] > 0  # of the epoch that was whole
    first = train(made(tiny_vit), epochs_of, COUNT, run_of(max_steps=1))
    assert first["total"] > 0 and first["nll"] > 0  # or of the part there is
    rest = made(tiny_vit)
    train(rest, epochs_of, COUNT, run_of(tmp_path))
    assert_same_parameters(rest, uninterrupted[0])


@pytest.mark.parametrize("keep", [0.0, 0.25, 1.0])
def test_keep_goes_part_of_the_way_back(tiny_vit, tmp_path, uninterrupted, keep):
    start, whole = made(tiny_vit), uninterrupted[0]
    method = made(tiny_vit, f"keep={keep}")
    assert train(method, epochs_of, COUNT, run_of(tmp_path)) == uninterrupted[1]
    for name, value in method.named_parameters():
        first = start.get_parameter(name)
        wanted = first + keep * (whole.get_parameter(name) - first)
        torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-7, msg=name)
    again = made(tiny_vit, f"keep={keep}")
    train(again, epochs_of, COUNT, run_of(tmp_path))  # a finished run: the checkpoint has all of the change
    assert_same_parameters(method, again)


def test_keep_goes_back_to_what_begin_made_after_a_kill_too(tiny_vit, tmp_path):
    class Beginner(PBPrompt):
        def begin(self, images, labels, seed):
            with torch.no_grad():
                self.generator.words += images.global_.mean()

    whole = made(tiny_vit, "keep=0.5", kind=Beginner)
    train(whole, epochs_of, COUNT, run_of())
    first = made(tiny_vit, "keep=0.5", kind=Beginner)
    train(first, epochs_of, COUNT, run_of(tmp_path, max_steps=5))
    again = made(tiny_vit, "keep=0.5", kind=Beginner)
    train(again, epochs_of, COUNT, run_of(tmp_path))
    assert_same_parameters(whole, again)


@pytest.mark.parametrize("keep", [-0.1, 1.5])
def test_keep_is_a_share(keep):
    with pytest.raises(InputError, match="'keep'"):
        make_config(PBPrompt, overrides=[f"keep={keep}"])


# ---------------------------------------------------------------- kills


class Kill(BaseException):
    """As sudden as SIGKILL: nothing in the loop handles it."""


def stops_at(call, what):
    class Stops(PBPrompt):
        def loss(self, batch, generator, examples):
            self.calls = getattr(self, "calls", 0) + 1
            if self.calls == call:
                raise what
            return super().loss(batch, generator, examples)

    return Stops


@pytest.mark.parametrize("step", [1, 2, 4, 5, 10, 11, 14, 23])
def test_ctrl_c_in_a_step_and_on_to_the_same_bits(tiny_vit, tmp_path, uninterrupted, step):
    method, last, log = uninterrupted
    with pytest.raises(KeyboardInterrupt):
        train(made(tiny_vit, kind=stops_at(step, KeyboardInterrupt())), epochs_of, COUNT, run_of(tmp_path))
    again = made(tiny_vit, kind=Seen)
    assert train(again, epochs_of, COUNT, run_of(tmp_path)) == last
    assert len(again.seen) == 24 - (step - 1)  # no step was lost
    assert_same_parameters(method, again)
    assert log_of(tmp_path) == log


def test_a_log_gets_lines_and_says_where_a_run_goes_on(tiny_vit, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        stopped = made(tiny_vit, kind=stops_at(12, KeyboardInterrupt()))
        train(stopped, epochs_of, COUNT, run_of(tmp_path, progress=True))
    told = capsys.readouterr().err
    assert "step 1 of 24: training\n" in told and "step 11 of 24: loss " in told
    assert "continuing" not in told and "\n\n" not in told and checkpoint_step(tmp_path) == 11
    train(made(tiny_vit), epochs_of, COUNT, run_of(tmp_path, progress=True))
    assert capsys.readouterr().err.startswith("continuing from step 11 of 24\nstep 12 of 24: ")


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("step", [3, 10, 13])
def test_a_kill_and_on_to_the_same_bits(tiny_vit, whole_runs, tmp_path, monkeypatch, step, optimiser):
    setting = f"optimiser={optimiser}"
    whole, last, log = whole_runs[optimiser]
    monkeypatch.setattr(loop, "SAVE_EVERY", -1.0)  # a checkpoint after every step
    killed = tmp_path / "killed"
    with pytest.raises(Kill):
        train(made(tiny_vit, setting, kind=stops_at(step + 1, Kill())), epochs_of, COUNT, run_of(killed))
    with (killed / "log.jsonl").open("a") as file:
        file.write(f'{{"step": {step}, "tot')  # the kill cut a line short
    again = made(tiny_vit, setting, kind=Seen)
    assert train(again, epochs_of, COUNT, run_of(killed)) == last
    assert len(again.seen) == 24 - step
    assert_same_parameters(whole, again)
    assert log_of(killed) == log


def test_an_old_checkpoint_with_a_log_that_ran_ahead(tiny_vit, tmp_path, monkeypatch, uninterrupted):
    """The kill came long after the last checkpoint: the log's later lines go, and come again the same."""
    monkeypatch.setattr(loop, "SAVE_EVERY", -1.0)
    write, kept = loop.write_checkpoint, tmp_path / "kept"

    def write_and_keep(path, method, optimiser, step, *rest):
        write(path, method, optimiser, step, *rest)
        if step == 7:
            shutil.copy(path, kept)

    monkeypatch.setattr(loop, "write_checkpoint", write_and_keep)
    folder = tmp_path / "run"
    with pytest.raises(Kill):
        train(made(tiny_vit, kind=stops_at(18, Kill())), epochs_of, COUNT, run_of(folder))
    assert log_of(folder)[-1]["step"] == 16
    kept.replace(folder / "checkpoint.safetensors")
    again = made(tiny_vit, kind=Seen)
    train(again, epochs_of, COUNT, run_of(folder))
    assert len(again.seen) == 24 - 7
    assert_same_parameters(uninterrupted[0], again)
    assert log_of(folder) == uninterrupted[2]


def test_an_interrupt_within_an_update_is_not_saved(tiny_vit, tmp_path, monkeypatch, uninterrupted):
    """Half the parameters moved: that state belongs to no step."""
    make = step_module.make_optimiser

    def torn(method, captured):
        optimiser = make(method, captured=captured)
        step, calls = optimiser.step, []

        def half():
            calls.append(1)
            step()
            if len(calls) == 6:
                raise KeyboardInterrupt

        optimiser.step = half
        return optimiser

    monkeypatch.setattr(step_module, "make_optimiser", torn)
    with pytest.raises(KeyboardInterrupt):
        train(made(tiny_vit), epochs_of, COUNT, run_of(tmp_path))
    assert not (tmp_path / "checkpoint.safetensors").exists()
    monkeypatch.setattr(step_module, "make_optimiser", make)
    again = made(tiny_vit)
    train(again, epochs_of, COUNT, run_of(tmp_path))
    assert_same_parameters(uninterrupted[0], again)
    assert log_of(tmp_path) == uninterrupted[2]


def test_a_finished_run_is_not_run_again(tiny_vit, tmp_path, uninterrupted):
    train(made(tiny_vit), epochs_of, COUNT, run_of(tmp_path))
    again = made(tiny_vit, kind=Seen)
    train(again, epochs_of, COUNT, run_of(tmp_path))
    assert not hasattr(again, "seen")
    assert_same_parameters(uninterrupted[0], again)
    assert log_of(tmp_path) == uninterrupted[2]


def test_checkpoints_wait_their_time(tiny_vit, tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(loop, "write_checkpoint", lambda *arguments: written.append(arguments[3]))
    monkeypatch.setattr(loop, "SAVE_EVERY", 1e9)
    train(made(tiny_vit), epochs_of, COUNT, run_of(tmp_path))
    assert written == [24]
    monkeypatch.setattr(loop, "SAVE_EVERY", -1.0)
    train(made(tiny_vit), epochs_of, COUNT, run_of())
    assert written == [24]  # no folder, nothing written


def test_anothers_checkpoint_is_refused(tiny_vit, tmp_path):
    train(made(tiny_vit), epochs_of, COUNT, run_of(tmp_path, max_steps=1))
    before = (tmp_path / "log.jsonl").read_bytes()
    with pytest.raises(InputError, match="another run"):
        train(made(tiny_vit), epochs_of, COUNT, run_of(tmp_path, identity="that"))
    assert (tmp_path / "log.jsonl").read_bytes() == before


def test_a_damaged_checkpoint_is_refused(tiny_vit, tmp_path):
    train(made(tiny_vit), epochs_of, COUNT, run_of(tmp_path, max_steps=1))
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InputError, match=r"checkpoint.safetensors: not a usable checkpoint .* remove it"):
        train(made(tiny_vit), epochs_of, COUNT, run_of(tmp_path))


# ---------------------------------------------------------------- a loss that is no number


class Diverges(PBPrompt):
    """From its 14th step (number 13) on, the loss is NaN."""

    def loss(self, batch, generator, examples):
        self.calls = getattr(self, "calls", 0) + 1
        terms = super().loss(batch, generator, examples)
        return terms if self.calls < 14 else terms | {"total": terms["total"] * torch.nan}


def batch_hash(step):
    order = torch.randperm(COUNT, generator=stream(5, "order", step // 4))
    rows = order[BATCH * (step % 4) :][:BATCH]
    return hashlib.sha256(rows.numpy().tobytes()).hexdigest()[:12]


def test_nan_stops_with_step_batch_and_last_good_state(tiny_vit, tmp_path, monkeypatch):
    good = made(tiny_vit)
    train(good, epochs_of, COUNT, run_of(max_steps=12))  # the look before the bad step
    monkeypatch.setattr(loop, "SAVE_EVERY", -1.0)
    method = made(tiny_vit, kind=Diverges)
    with pytest.raises(DivergedError) as error:
        train(method, epochs_of, COUNT, run_of(tmp_path))
    said = str(error.value)
    assert said.startswith("step 13: the loss is no number") and f"batch {batch_hash(13)}" in said
    assert str(tmp_path / "last-good.safetensors") in said and "learning_rate" in said and "\n" not in said
    saved = load((tmp_path / "last-good.safetensors").read_bytes())
    checkpointed = load((tmp_path / "checkpoint.safetensors").read_bytes())
    for key, value in method.state_dict().items():
        assert torch.isfinite(value).all() and torch.equal(value, saved[key])
        assert torch.isfinite(checkpointed[f"parameters/{key}"]).all()
    monkeypatch.setattr(loop, "SAVE_EVERY", 1e9)
    late = made(tiny_vit, kind=Diverges)
    with pytest.raises(DivergedError, match="step 13"):
        train(late, epochs_of, COUNT, run_of())
    assert_same_parameters(good, late)


def test_what_diverged_is_not_saved_by_ctrl_c(tiny_vit, tmp_path):
    class Both(Diverges):
        def loss(self, batch, generator, examples):
            if getattr(self, "calls", 0) == 14:
                raise KeyboardInterrupt
            return super().loss(batch, generator, examples)

    with pytest.raises(DivergedError, match="step 13"):
        train(made(tiny_vit, kind=Both), epochs_of, COUNT, run_of(tmp_path))
    assert not (tmp_path / "checkpoint.safetensors").exists()


def test_a_gradient_that_is_no_number_spoils_nothing(tiny_vit, tmp_path):
    """The loss of the last step before a look is fine, but its gradient is not."""

    class BadGradient(PBPrompt):
        def backward(self, terms):
            self.calls = getattr(self, "calls", 0) + 1
            super().backward(terms)
            if self.calls == 8:
                self.generator.words.grad.fill_(torch.nan)

    good = made(tiny_vit)
    train(good, epochs_of, COUNT, run_of(max_steps=4))
    method = made(tiny_vit, kind=BadGradient)
    with pytest.raises(DivergedError, match="step 7: the new value of a parameter is no number"):
        train(method, epochs_of, COUNT, run_of(tmp_path))
    assert_same_parameters(good, method)


def test_a_method_that_learns_nothing(tiny_vit, tmp_path):
    class Still(Trained):
        name = "still"

    method = Still(MethodConfig(), tiny_vit)
    assert train(method, epochs_of, COUNT, run_of(tmp_path, epochs=0)) == {}
