"""SHIP: synthesised prompts make features for classes without images (Wang et al., ICCV 2023).

Stage 1, before the first step, an autoencoder whose decoder is the text tower, x = f(image)/‖f(image)‖:

    z ~ q(z|x) = N(μ(x), diag σ²(x)),  p(z) = N(0, I)
    x̂_c(z) = g/‖g‖,  g = text tower([SOS] u_1 + G(z) … u_b + G(z) name_c [.] [EOT])
    loss = ‖x̂_y(z) − x‖² + KL[q(z|x) ‖ p(z)]                          y: the image's own class

Stage 2, CoOp over the training classes and the new names together: each step takes a batch of real images
and as many synthetic features x̂_c(z), z ~ N(0, I), of new names c drawn evenly:

    g_c = text tower([SOS] v_1 … v_b name_c [.] [EOT])
    loss = mean of −log softmax_y( s·cos(x, g_c) ) over both

μ and log σ² are the `encoder`, d → 2048 → (d, d), G the `generator`, d → 4096 → w, both with ReLU; u_1 … u_b
are `synth_context`, v_1 … v_b `context`, [b, w] each: all that stage 2 trains and predictions use.

The new names are `unseen_names`, which a task sets. Without any there is nothing to synthesise: stage 1 is
left out, and stage 2 is CoOp. With the variant `cocoop` stage 2 is CoCoOp, with π(x) of real and synthetic
features; the authors' code has CoOp alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from pbprompt import distributed
from pbprompt.learners.method import Batch, EpochViews, setting
from pbprompt.learners.trained import Terms, accuracy
from pbprompt.prompts.pbprompt.variational import draw_noise, gaussian_kl, sample
from pbprompt.prompts.rivals.cocoop import ShiftedContext, network
from pbprompt.prompts.rivals.coop import ContextConfig
from pbprompt.registry import register
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.backbone import Backbone
from pbprompt.vision.towers.engine import TextEngine
from pbprompt.vision.towers.prompts import INITIAL_STD, Prompt, named_prompts, start_context

SEED_OF_SYNTHESIS = 1_000_003  # stage 1's noise is apart from the initial values, which the seed itself gives


@dataclass(frozen=True, kw_only=True)
class SHIPConfig(ContextConfig):
    """The published stage 1, then CoOp's recipe started at words; the preset `published` has its own."""

    tokens: int = setting(4, "b, context vectors of either stage")
    encoder_width: int = setting(2048, "hidden units of the encoder")
    generator_width: int = setting(4096, "hidden units of the generator")
    synth_epochs: int = setting(50, "stage 1: passes over the training images")
    synth_batch: int = setting(256, "stage 1: images per step")
    synth_rate: float = setting(1e-3, "stage 1: learning rate of AdamW")
    synth_views: Literal["first", "fresh"] = setting("first", "stage 1: views of the first epoch, or each's")
    generator_slope: float = setting(0.0, "slope of the generator's ReLU below zero")
    student: Literal["coop", "cocoop"] = setting("coop", "what stage 2 trains: coop or cocoop")


STAGE_2 = {"batch_size": 256, "warmup_epochs": 0, "anneal": "step", "synth_views": "fresh"}


@register("ship")
class SHIP(ShiftedContext):
    """CoOp with synthetic features for the new classes' names."""

    Config = SHIPConfig
    presets = {
        "published": {**STAGE_2, "momentum": 0.0, "weight_decay": 0.0, "epochs": 200},
        "published-imagenet": {
            **STAGE_2, "optimiser": "adamw", "learning_rate": 1e-3, "weight_decay": 0.01, "epochs": 20,
            "adam_epsilon": 1e-4, "encoder_width": 4096, "generator_slope": 0.2, "synth_epochs": 10,
        },
    }  # fmt: skip
    variants = {"cocoop": {"student": "cocoop", "batch_size": 1, "epochs": 10}}  # CoCoOp's own recipe
    paper = "Wang et al., ICCV 2023"
    unseen_names: tuple[str, ...] = ()  # classes without images that will be asked about; set before training
    config: SHIPConfig
    _stage2: tuple[object, list[Prompt], TextEngine] | None = None

    def __init__(self, config: SHIPConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        joint, width = backbone.embed_dim, backbone.text_width
        self.synth_context = nn.Parameter(start_context(backbone, config.tokens, ""))
        self.encoder = network(joint, config.encoder_width, 2 * joint)
        slope = nn.LeakyReLU(config.generator_slope)
        self.generator = network(joint, config.generator_width, width, activation=slope)
        for part in (*self.encoder, *self.generator):
            if isinstance(part, nn.Linear):
                nn.init.normal_(part.weight, std=INITIAL_STD)
                nn.init.zeros_(part.bias)
        if config.student == "cocoop":
            self.let_images_shift()

    def trainable(self) -> list[nn.Parameter]:
        """Stage 2 leaves what stage 1 made as it is."""
        return [self.context, *(self.meta_net.parameters() if self.meta_net else ())]

    def _prompts(self, names: Sequence[str]) -> list[Prompt]:
        return named_prompts(self.backbone.tokenizer, names, self.config.tokens)

    def begin_on(self, views: EpochViews, seed: int) -> None:
        """Stage 1 on all training images."""
        if not self.unseen_names:
            return
        generator = torch.Generator().manual_seed(seed + SEED_OF_SYNTHESIS)
        prompts = self._prompts(self.classes)
        parameters = [self.synth_context, *self.encoder.parameters(), *self.generator.parameters()]
        optimiser = torch.optim.AdamW(parameters, lr=self.config.synth_rate)
        for epoch in range(self.config.synth_epochs):
            if epoch == 0 or self.config.synth_views == "fresh":
                images, labels, _ = views(epoch)
            for rows in torch.randperm(len(labels), generator=generator).split(self.config.synth_batch):
                here = rows.to(labels.device)
                own = [prompts[label] for label in labels[here].tolist()]
                terms = self.synthesis_loss(images.global_[here], own, generator)
                optimiser.zero_grad()
                terms["total"].backward()
                distributed.average([one.grad for one in parameters if one.grad is not None])
                optimiser.step()
        optimiser.zero_grad()

    def synthesis_loss(
        self, images: Float[Tensor, "k d"], prompts: Sequence[Prompt], generator: torch.Generator
    ) -> Terms:
        """Stage 1's loss of images with their own classes' prompts, the mean over images."""
        x = unit(images).to(self.context)
        mean, log_variance = self.encoder(x).chunk(2, dim=-1)
        z = sample(mean, log_variance, 1, generator).squeeze(0)
        error = (self.synthesise(prompts, z) - x).square().sum(-1).mean()
        kl = gaussian_kl(mean, log_variance, torch.zeros_like(mean)).sum(-1).mean()
        return {"total": error + kl, "error": error, "kl": kl}

    def synthesise(self, prompts: Sequence[Prompt], z: Float[Tensor, "k d"]) -> Float[Tensor, "k d"]:
        """x̂_c(z): one feature for each prompt and latent; no other class is encoded."""
        contexts = self.synth_context + self.generator(z).unsqueeze(1)
        return unit(TextEngine(self.backbone, prompts, graph=False)(contexts))

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        prompts, engine = self._both()
        x, labels = unit(batch.images.global_), batch.labels
        real = len(labels)
        if len(prompts) > len(self.classes):
            made, names = self._synthetic(prompts, real, generator)
            x, labels = torch.cat([x, made.to(x)]), torch.cat([labels, names])
        logits = self.logits(x, engine)
        nll = F.cross_entropy(logits, labels, reduction="none")
        synthetic = {"synthetic": nll[real:].mean()} if len(labels) > real else {}
        right = accuracy(logits[:real], batch.labels)
        return {"total": nll.mean(), "real": nll[:real].mean(), **synthetic, "accuracy": right}

    def _both(self) -> tuple[list[Prompt], TextEngine]:
        """The training classes and, behind them, the new names; made when they change."""
        names = self.classes, self.unseen_names
        if self._stage2 is None or self._stage2[0] != names:
            known = set(self.classes)
            new = [name for name in dict.fromkeys(self.unseen_names) if name not in known]
            prompts = self._prompts((*self.classes, *new))
            self._stage2 = names, prompts, TextEngine(self.backbone, prompts)
        return self._stage2[1:]

    @torch.no_grad()
    def _synthetic(
        self, prompts: Sequence[Prompt], count: int, generator: torch.Generator
    ) -> tuple[Float[Tensor, "k d"], Int[Tensor, " k"]]:
        """Features of `count` new names drawn evenly, and their labels, which come after the classes'."""
        labels = torch.randint(len(self.classes), len(prompts), (count,), generator=generator)
        z = draw_noise((count, self.backbone.embed_dim), generator).to(self.context)
        made = self.synthesise([prompts[label] for label in labels.tolist()], z)
        return made, labels.to(made.device)
