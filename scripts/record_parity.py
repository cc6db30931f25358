"""Write tests/parity/authors.json: numbers that the authors' own code gives on inputs drawn by seed.

    python scripts/record_parity.py CoOp=CLONE PLOT=CLONE ProGrad=CLONE SHIP=CLONE Tip-Adapter=CLONE VPT=CLONE

Each CLONE is a clone of the repository below that has the commit. Nothing of it is kept here: single classes
and functions are read out of the commit and run on float64 tensors on the CPU. `inputs` draws what both sides
get; the tests compare our functions with the numbers. Image features are drawn; where prompts are encoded,
the authors' text tower has the random weights of `pbprompt.testing`'s tiny one.
"""

import ast
import json
import subprocess
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pbprompt.files import write_text
from pbprompt.testing.fits import tiny_vit

FILE = Path(__file__).parents[1] / "tests" / "parity" / "authors.json"
COMMITS = {
    "CoOp": ("github.com/KaiyangZhou/CoOp", "ff61507c790454bce7c5052c3ac39e60772f1f89"),  # and CoCoOp
    "PLOT": ("github.com/CHENGY12/PLOT", "728539feac3f8471a1663ce79020b236880e5e7b"),
    "ProGrad": ("github.com/BeierZhu/Prompt-align", "1b762036cbe97ecf504e17bb94d89191679e4e6e"),
    "SHIP": ("github.com/mrflogs/SHIP", "492854ed5e95335ff9ce190feef2079be7ece259"),
    "Tip-Adapter": ("github.com/gaopengcuhk/Tip-Adapter", "d0e2d6f8c5feb8b6ce937b757810761f7155d4d5"),
    "VPT": ("github.com/saic-fi/Bayesian-Prompt-Learning", "8a73fff156327e96f5a3b129aa52dc4dde426c27"),
}
SCALE = 20.0
NAMES = ("cat", "golden_retriever", "red car")
LABELS = torch.tensor([0, 2, 1])


def inputs(*shape: int, seed: int) -> Tensor:
    """Normal draws in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Authors:
    """The authors' code at its commit."""

    def __init__(self, name: str, clone: str) -> None:
        self.commit, self.clone = COMMITS[name][1], clone

    def take(self, path: str, name: str, **around: Any) -> Any:
        """One class or function out of a file, run among `around` alone."""
        command = ["git", "-C", self.clone, "show", f"{self.commit}:{path}"]
        source = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        kinds = (ast.ClassDef, ast.FunctionDef)
        found: list[ast.stmt] = [
            node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds) and node.name == name
        ]
        world = {
            "torch": torch,
            "nn": nn,
            "F": F,
            "tqdm": lambda items: items,
            "print": lambda *_: None,
            **around,
        }
        exec(compile(ast.Module(found[:1], []), path, "exec"), world)
        return world[name]


class Images:
    """In place of the image tower: it is given features."""

    output_dim = input_resolution = 32

    def __call__(self, features: Tensor) -> Tensor:
        return features


def prompt_clip(authors: Authors, path: str, told: str, **settings: Any) -> Any:
    """The authors' model of a trainer's file, on their text tower with the tiny one's weights."""
    backbone = tiny_vit(torch.float64)
    text, tokenizer = backbone.text_sizes, backbone.tokenizer
    around: dict[str, Any] = {"OrderedDict": OrderedDict, "LayerNorm": nn.LayerNorm}  # theirs is in float32
    for name in ("QuickGELU", "ResidualAttentionBlock", "Transformer"):
        around[name] = authors.take("clip/model.py", name, **around)
    mask = torch.full((text.context_length,) * 2, -torch.inf, dtype=torch.float64).triu(1)
    state = backbone.textual.state_dict()
    clip = SimpleNamespace(
        transformer=around["Transformer"](text.width, text.layers, text.heads, mask).double(),
        ln_final=nn.LayerNorm(text.width).double(),
        positional_embedding=state["positional_embedding"],
        text_projection=state["text_projection"],
        token_embedding=backbone.token_embedding,
        logit_scale=torch.tensor(backbone.logit_scale, dtype=torch.float64).log(),
        visual=Images(),
        dtype=torch.float64,
    )
    for part in ("transformer", "ln_final"):
        own = {key.removeprefix(f"{part}."): value for key, value in state.items() if key.startswith(part)}
        getattr(clip, part).load_state_dict(own)

    def tokenize(sentence: str) -> Tensor:
        ids = tokenizer(sentence)[0]
        return F.pad(ids, (0, text.context_length - ids.shape[1]))

    around |= {"_tokenizer": tokenizer, "clip": SimpleNamespace(tokenize=tokenize)}
    for name in ("InferenceBlock", "Amortized") if told == "VPT" else ():
        around[name] = authors.take(path, name, **around)
    for name in ("TextEncoder", "PromptLearner"):
        around[name] = authors.take(path, name, **around)
    trainer = SimpleNamespace(**{told: SimpleNamespace(N_CTX=4, CTX_INIT="", PREC="fp32", **settings)})
    config = SimpleNamespace(TRAINER=trainer, INPUT=SimpleNamespace(SIZE=[Images.input_resolution]))
    model = authors.take(path, "CustomCLIP", **around)(config, NAMES, clip)
    model.prompt_learner.double()
    return model


def fill(parameters: Sequence[nn.Parameter]) -> None:
    """Values by seed: 1 for the first parameter, 2 for the next."""
    with torch.no_grad():
        for seed, parameter in enumerate(parameters, start=1):
            parameter.copy_(0.1 * inputs(*parameter.shape, seed=seed))


def norms(loss: Tensor, parameters: Sequence[nn.Parameter]) -> Iterator[float]:
    """The loss, and the norm of its gradient by each parameter."""
    yield loss.item()
    yield from (grad.norm().item() for grad in torch.autograd.grad(loss, parameters))


def coop(authors: Authors) -> dict[str, list[float]]:
    """Logits of 3 images, loss and gradients: the name at each place, a context a class, and CoCoOp."""
    told, images = {}, inputs(3, 32, seed=9)
    for place, each in (("end", False), ("middle", False), ("front", False), ("end", True)):
        model = prompt_clip(authors, "trainers/coop.py", "COOP", CSC=each, CLASS_TOKEN_POSITION=place)
        fill([model.prompt_learner.ctx])
        logits = model(images)
        found = norms(F.cross_entropy(logits, LABELS), [model.prompt_learner.ctx])
        told["class-specific" if each else place] = [*logits.flatten().tolist(), *found]
    model = prompt_clip(authors, "trainers/cocoop.py", "COCOOP")
    parameters = list(model.prompt_learner.parameters())
    fill(parameters)
    loss = model(images, LABELS)
    model.prompt_learner.eval()
    told["CoCoOp"] = [*model(images).flatten().tolist(), *norms(loss, parameters)]
    return told


def vpt(authors: Authors) -> dict[str, list[float]]:
    """Log-probabilities of an image over 5 draws, loss and gradients, with and without networks."""
    told, noise = {}, inputs(5, 1, 64, seed=20)
    for kind in ("coopvpt", "cocoopvpt"):
        model = prompt_clip(authors, "trainers/vpt.py", "VPT", L=5, VPT_TYPE=kind)
        parameters, images = list(model.prompt_learner.parameters()), inputs(1, 32, seed=9)
        fill(parameters)
        with patch.object(torch, "randn", lambda shape: noise):
            loss = model(images, LABELS[:1])
            model.prompt_learner.eval()
            said = model(images).flatten().tolist()
        told[kind] = [*said, *norms(loss, parameters)]
    return told


def plot(authors: Authors) -> dict[str, list[float]]:
    """Logits, and the gradient by the prompts, of 3 images with 5 patches, 4 classes of 2 prompts."""
    kind = authors.take("plot-coop/trainers/plot.py", "CustomCLIP")
    told = {}
    for dataset in ("Caltech101", "ImageNet"):
        text = inputs(8, 6, seed=2).requires_grad_()
        model = kind.__new__(kind)
        nn.Module.__init__(model)
        model.image_encoder = lambda image: inputs(6, 3, 6, seed=1)
        model.prompt_learner = lambda: torch.zeros(1)
        model.text_encoder = lambda prompts, tokens, text=text: text
        model.tokenized_prompts = torch.zeros(1)
        model.logit_scale = torch.tensor(SCALE, dtype=torch.float64).log()
        model.dtype, model.device, model.device1 = torch.float64, "cpu", "cpu"
        model.N, model.n_cls, model.dataset, model.eps, model.max_iter = 2, 4, dataset, 0.1, 100
        logits = model(torch.zeros(3, 1))
        F.cross_entropy(logits, torch.tensor([0, 3, 1])).backward()
        assert text.grad is not None
        told[dataset] = [*logits.flatten().tolist(), text.grad.norm().item()]
    return told


def prograd(authors: Authors) -> dict[str, list[float]]:
    """Both losses and the gradient that is stepped along, where the two agree and where they conflict."""
    loss = authors.take("ProGrad.public/trainers/prograd.py", "ProGradLoss", _Loss=nn.modules.loss._Loss)(
        T=1.0
    )
    step = authors.take("Dassl.ProGrad.pytorch/dassl/engine/trainer.py", "prograd_backward_and_update")
    told = {}
    for seed in range(1, 9):
        weight = nn.Parameter(0.1 * inputs(4, 6, seed=seed))
        students, teachers = inputs(3, 6, seed=10) @ weight.T, 5 * inputs(3, 4, seed=seed + 20)
        losses = loss(students, teachers, torch.tensor([0, 3, 1]))
        optimiser = SimpleNamespace(zero_grad=lambda w=weight: setattr(w, "grad", None), step=lambda: None)
        trainer = SimpleNamespace(
            model_zero_grad=lambda names: None,
            get_model_names=lambda names: ["one"],
            detect_anomaly=lambda loss: None,
            _models={"one": SimpleNamespace(parameters=lambda w=weight: [w])},
            _optims={"one": optimiser},
        )
        step(trainer, *losses)
        assert weight.grad is not None
        told[str(seed)] = [losses[0].item(), *weight.grad.flatten().tolist()]
    return told


def ship(authors: Authors) -> dict[str, list[float]]:
    """Stage 1's loss of 5 images."""
    loss = authors.take("main_coop_vae.py", "vae_loss")
    made, x, mean, spread = (inputs(5, 6, seed=seed) for seed in (1, 2, 3, 4))
    return {"loss": [loss(made, x, mean, spread, None, None).item()]}


def tip_adapter(authors: Authors) -> dict[str, list[float]]:
    """The keys of 4 images over 3 views, and the β and α of a search on 30 images."""
    build = authors.take("utils.py", "build_cache_model")
    views = iter(inputs(3, 4, 6, seed=1))
    clip = SimpleNamespace(encode_image=lambda images: next(views))
    with tempfile.TemporaryDirectory() as folder, patch.object(torch.Tensor, "cuda", lambda self: self):
        settings = {"load_cache": False, "augment_epoch": 3, "shots": 2, "cache_dir": folder}
        keys, _ = build(settings, clip, [(torch.zeros(4, 1), torch.tensor([0, 1, 0, 1]))])
    # numpy makes a number of an array of one no longer by itself
    right = authors.take("utils.py", "cls_acc", float=lambda array: array.item())
    search = authors.take("utils.py", "search_hp", cls_acc=right)
    grid = {"search_hp": True, "search_scale": [7, 3], "search_step": [200, 20]}
    cached, x = (F.normalize(inputs(count, 6, seed=count), dim=-1) for count in (8, 30))
    text = F.normalize(inputs(1, 6, seed=3) + 0.05 * inputs(4, 6, seed=4), dim=-1)  # near one another
    votes = F.one_hot(torch.arange(8) % 4).double()
    found = []
    for seed in range(5, 10):
        found += search(grid, cached.T, votes, x, inputs(30, 4, seed=seed).argmax(1), text.T)
    return {"keys": keys.T.flatten().tolist(), "searched": found}


RECORDERS = {
    "CoOp": coop,
    "PLOT": plot,
    "ProGrad": prograd,
    "SHIP": ship,
    "Tip-Adapter": tip_adapter,
    "VPT": vpt,
}


def main(clones: dict[str, str]) -> None:
    told = {
        name: {"repository": "@".join(COMMITS[name]), **record(Authors(name, clones[name]))}
        for name, record in RECORDERS.items()
    }
    write_text(FILE, json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main(dict(word.split("=", 1) for word in sys.argv[1:]))
