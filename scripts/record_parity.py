"""Write tests/parity/authors.json: numbers that the authors' own code gives on inputs drawn by seed.

    python scripts/record_parity.py PLOT=CLONE ProGrad=CLONE SHIP=CLONE Tip-Adapter=CLONE

Each CLONE is a clone of the repository below that has the commit. Nothing of it is kept here: single classes
and functions are read out of the commit and run on float64 tensors on the CPU, with plain tensors in place of
the towers. `inputs` draws what both sides get; the tests compare our functions with the numbers.
"""

import ast
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pbprompt.files import write_text

FILE = Path(__file__).parents[1] / "tests" / "parity" / "authors.json"
COMMITS = {
    "PLOT": ("github.com/CHENGY12/PLOT", "728539feac3f8471a1663ce79020b236880e5e7b"),
    "ProGrad": ("github.com/BeierZhu/Prompt-align", "1b762036cbe97ecf504e17bb94d89191679e4e6e"),
    "SHIP": ("github.com/mrflogs/SHIP", "492854ed5e95335ff9ce190feef2079be7ece259"),
    "Tip-Adapter": ("github.com/gaopengcuhk/Tip-Adapter", "d0e2d6f8c5feb8b6ce937b757810761f7155d4d5"),
}
SCALE = 20.0


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
    """The keys of 4 images over 3 views."""
    build = authors.take("utils.py", "build_cache_model")
    views = iter(inputs(3, 4, 6, seed=1))
    clip = SimpleNamespace(encode_image=lambda images: next(views))
    with tempfile.TemporaryDirectory() as folder, patch.object(torch.Tensor, "cuda", lambda self: self):
        settings = {"load_cache": False, "augment_epoch": 3, "shots": 2, "cache_dir": folder}
        keys, _ = build(settings, clip, [(torch.zeros(4, 1), torch.tensor([0, 1, 0, 1]))])
    return {"keys": keys.T.flatten().tolist()}


RECORDERS = {"PLOT": plot, "ProGrad": prograd, "SHIP": ship, "Tip-Adapter": tip_adapter}


def main(clones: dict[str, str]) -> None:
    told = {
        name: {"repository": "@".join(COMMITS[name]), **record(Authors(name, clones[name]))}
        for name, record in RECORDERS.items()
    }
    write_text(FILE, json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main(dict(word.split("=", 1) for word in sys.argv[1:]))
