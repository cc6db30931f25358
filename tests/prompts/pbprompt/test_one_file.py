"""The paper in one file is the library's preset `literal`: loss, gradients, plans and predictions."""

import importlib.util
from pathlib import Path

import pytest
import torch

from pbprompt.learners.method import Batch, build_method, make_config
from pbprompt.prompts.pbprompt.model import PBPrompt
from pbprompt.prompts.pbprompt.transport import plan_similarity, transport_plans
from pbprompt.vision.towers.backbone import Encoded

FILE = Path(__file__).parents[3] / "examples" / "pbprompt_in_one_file.py"
spec = importlib.util.spec_from_file_location("pbprompt_in_one_file", FILE)
one_file = importlib.util.module_from_spec(spec)
spec.loader.exec_module(one_file)

CLASSES = ["bird", "golden retriever", "road vehicle"]
EXAMPLES, SEED = 24, 5
NAMES = {  # in the library -> in the file
    "posterior.mean": "mu",
    "posterior.log_variance": "log_sigma2",
    "generator.in_proj.": "attention.in_proj_",
    "generator.out_proj": "attention.out_proj",
    "generator.words": "w",
    "generator.positions": "PE",
}


def in_the_file(name: str) -> str:
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name


@pytest.fixture
def pair(double_vit):
    """The library's method and the file's, with the same parameters, away from their start."""
    method = build_method(PBPrompt, make_config(PBPrompt, "literal"), double_vit, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    method.double().prepare(CLASSES, "")
    own = one_file.PBPrompt(double_vit, CLASSES).double()
    own.load_state_dict({in_the_file(name): value for name, value in method.state_dict().items()})
    return method, own


def some_images(dim):
    generator = torch.Generator().manual_seed(3)
    shapes = ((4, dim), (4, 5, dim))
    images = Encoded(*(torch.randn(shape, generator=generator).double() for shape in shapes))
    return Batch(images, torch.tensor([0, 2, 1, 2]))


def test_loss_and_gradients_are_the_librarys(pair, double_vit):
    method, own = pair
    batch = some_images(double_vit.embed_dim)
    terms = method.loss(batch, torch.Generator().manual_seed(SEED), EXAMPLES)
    epsilon = torch.randn(1, *own.e.shape, generator=torch.Generator().manual_seed(SEED))[0].double()
    loss = own.loss(*batch.images, batch.labels, epsilon, EXAMPLES)
    torch.testing.assert_close(loss, terms["total"], rtol=1e-8, atol=0)
    terms["total"].backward()
    loss.backward()
    gradients = {name: value.grad for name, value in own.named_parameters()}
    assert all(value.abs().max() > 0 for value in gradients.values())
    for name, value in method.named_parameters():
        torch.testing.assert_close(
            gradients.pop(in_the_file(name)), value.grad, rtol=1e-6, atol=1e-9 * value.grad.abs().max().item()
        )
    assert not gradients


def test_plans_are_the_librarys(pair, double_vit):
    method, own = pair
    (f, u), _, _ = some_images(double_vit.embed_dim)
    g = own.prompts(torch.zeros_like(own.e))
    p = own.p(f, g)
    _, to_g, to_u = one_file.transport(u, g, p)
    plans = transport_plans(plan_similarity(u, g, method.config.ct_plan), p.log())
    torch.testing.assert_close(to_g, plans.prompt_given_patch)
    torch.testing.assert_close(to_u, plans.patch_given_prompt)


def test_it_runs_from_end_to_end(monkeypatch, tmp_path, capsys):
    """On two classes of the sample; that it learns is seen on all of it, in two minutes."""
    whole = one_file.sample_set

    def few(split, shots=None):
        names, files, y = whole(split, shots or 3)
        return names[:2], *zip(*[pair for pair in zip(files, y, strict=True) if pair[1] < 2], strict=True)

    monkeypatch.setattr(
        one_file, "sample_set", lambda *given: (lambda n, f, y: (n, list(f), torch.stack(y)))(*few(*given))
    )
    before, after = one_file.main(shots=1, epochs=2, plan=str(tmp_path / "plan.png"))
    assert 0 <= before <= 1 and 0 <= after <= 1 and (tmp_path / "plan.png").stat().st_size
    assert "accuracy on 6 test images" in capsys.readouterr().out


def test_it_stays_short_and_apart():
    text = FILE.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 150
    assert "from pbprompt" not in text and text.count("pbprompt.load_backbone") == 1
