"""PBPrompt: patch-prompt aligned Bayesian prompt tuning (Liu, Wang et al., UAI 2024).

    q(r_c|c) = N(μ(e_c), diag σ²(e_c)),  p(r_c) = N(e_c, I)          each class is a distribution over prompts
    prefix_c = Self-Attn([r_c, w_1, …, w_b])                          generated from a sampled latent
    g_c = text tower([SOS] prefix_c name_c [.] [EOT])
    loss = E_q[−log p(y|x)] + β·KL[q‖p] + η·L_CT(patches, prompts)    combined ELBO

The equations are in the files beside this one; it puts them together. Where the paper can be read in several
ways the reading is a setting, but for one: which patch features u_m are (docs/readings.md). The presets are
`literal`, what is printed; `paper`, the readings nearest to the text that learn; and `default`, what measured
best.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pbprompt.errors import InputError
from pbprompt.learners.method import Batch, MethodConfig, setting
from pbprompt.learners.trained import Terms, Trained, accuracy
from pbprompt.learners.zeroshot import sentence_features
from pbprompt.prompts.pbprompt import variational
from pbprompt.prompts.pbprompt.elbo import combined_elbo
from pbprompt.prompts.pbprompt.generator import Layer, PromptGenerator
from pbprompt.prompts.pbprompt.transport import Plan, conditional_transport, entropic_transport, plan_entropy
from pbprompt.registry import register
from pbprompt.vision import similarity
from pbprompt.vision.images.names import name_key, read_name
from pbprompt.vision.towers.backbone import Backbone
from pbprompt.vision.towers.engine import TextEngine
from pbprompt.vision.towers.prompts import (
    INITIAL_STD,
    name_tokens,
    named_prompts,
    slot_prompt,
    start_context,
    word_embeddings,
)


@dataclass(frozen=True, kw_only=True)
class PBPromptConfig(MethodConfig):
    """The defaults are the preset `default`."""

    optimiser: Literal["sgd", "adamw"] = setting("adamw", "sgd (momentum 0.9) or adamw")
    learning_rate: float = setting(3e-3, "highest learning rate; cosine to zero over the epochs")
    weight_decay: float = setting(0.01, "weight decay of the optimiser")
    epochs: int = setting(60, "passes over the training images; 0: the paper's schedule by shots")
    tokens: int = setting(4, "b, prompt tokens", least=1, most=1000)
    words: str = setting("a photo of a", "words that the prompt tokens start from; empty: random")
    ending: Literal["stop", "template"] = setting("stop", "after a name: a full stop, or the template's end")
    label_embedding: Literal["tokens", "tower"] = setting(
        "tokens", "e: the mean of a name's token embeddings, or the text tower's output for it"
    )
    name_tokens: Literal["own", "mean"] = setting("own", "a name in its prompt: its own tokens, or e alone")
    prompts: Literal["generated", "free"] = setting("generated", "free: CoOp's plain context (P-Prompt)")
    keep_latent: bool = setting(True, "the generator's output for r is part of the prefix")
    residual: bool = setting(True, "the generator adds its input: the words start as they are")
    layer: Layer = setting("attention", "bare attention, or a transformer layer (pre-norm, post-norm)")
    words_std: float = setting(INITIAL_STD, "deviation of random words; 0.1414: 0.02 as variance", least=0)
    mean_residual: bool = setting(True, "μ(e) = e + Linear(e), started at e")
    initial_std: float = setting(1.56, "σ at the start, in units; 0: as the linear layer gives it", least=0)
    sampling: bool = setting(True, "draw r from q; false: r = μ(e) and no KL (w/o-S)")
    train_samples: int = setting(2, "draws of r per training step", least=1, most=1000)
    antithetic: bool = setting(False, "draws of a step in pairs of noise ε and −ε")
    likelihood: Literal["mean_of_logs", "log_of_mean"] = setting("log_of_mean", "over the draws of a step")
    prior_std: float = setting(1.56, "standard deviation of the prior around e, in units")
    std_unit: Literal["embedding", "one"] = setting("embedding", "unit of both: RMS of embeddings, or 1")
    kl_weight: float = setting(0.01, "β")
    kl_reduction: Literal["elbo", "mean", "sum"] = setting("elbo", "elbo: sum over classes / training images")
    transport: Literal["ct", "ot"] = setting("ct", "conditional or entropic optimal transport")
    ct_weight: float = setting(1.0, "η; 0: no transport (B-Prompt)")
    ct_balance: float = setting(0.5, "λ: patch to prompt; 1 − λ: prompt to patch")
    ct_sum: bool = setting(False, "both directions in full, without λ")
    ct_plan: Plan = setting("cosine", "the plans' exponents: cosines of patches and prompts, or products")
    ct_temperature: float = setting(1.0, "T of the plans; 0: 1/logit scale", least=0)
    ct_gradient: bool = setting(False, "let the gradient through the class probabilities of the transport")
    text_products: Literal["exact", "bfloat16"] = setting(
        "exact", "text tower in training; bfloat16: approximate, faster on a CPU that has it"
    )
    reading: Literal["probabilities", "features", "mean"] = setting(
        "probabilities", "prediction: mean of probabilities, of text features, or the posterior mean alone"
    )
    prediction_temperature: float = setting(1.0, "divides the logits in prediction; above 1: less sure")

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("prior_std", "prediction_temperature"):
            if not getattr(self, key) > 0:
                raise InputError(f"setting {key!r} is {getattr(self, key)}: it takes a number above 0")


LOOKED_AT = 8  # images whose plans are looked at
# fmt: off
LITERAL: dict[str, Any] = {
    "optimiser": "sgd", "learning_rate": 0.002, "weight_decay": 5e-4, "batch_size": 1, "epochs": 0,
    "words": "", "name_tokens": "mean", "residual": False,
    "mean_residual": False, "initial_std": 0.0, "train_samples": 1, "likelihood": "mean_of_logs",
    "prior_std": 1.0, "std_unit": "one", "kl_weight": 1.0,
    "ct_weight": 0.01, "ct_sum": True, "ct_plan": "product", "ct_gradient": True,
}
THAT_LEARN: dict[str, Any] = {  # of round 12 in docs/readings.md
    "batch_size": 32, "label_embedding": "tower", "name_tokens": "own", "layer": "post-norm",
}
# fmt: on


@register("pbprompt")
class PBPrompt(Trained):
    """A distribution over prompts for each class, from its name alone."""

    Config = PBPromptConfig
    presets = {
        # For names that come later: stays nearer to the words, and trusts its guesses less.
        "new-classes": {"weight_decay": 1.0, "prediction_temperature": 1.4},
        "literal": LITERAL,
        "paper": {**LITERAL, **THAT_LEARN},
    }
    variants = {
        "b-prompt": {"ct_weight": 0.0},
        "p-prompt": {"prompts": "free"},
        "without-sampling": {"sampling": False},
        "ot": {"transport": "ot"},
    }
    tags = ("stochastic", "uses patches")
    paper = "Liu, Wang et al., UAI 2024"
    revision = 2
    capturable = True
    takes_weights = True
    config: PBPromptConfig

    def __init__(self, config: PBPromptConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self._seen: Float[Tensor, "b m d"] | None = None  # patches of a step, to look at the plans
        width = backbone.text_width
        if config.prompts == "free":
            self.context = nn.Parameter(start_context(backbone, config.tokens, config.words))
            return
        words = word_embeddings(backbone, config.words, config.tokens).cpu() if config.words else None
        scale = backbone.embedding_scale if config.std_unit == "embedding" else 1.0
        self.prior_std = config.prior_std * scale
        start = config.initial_std * scale or None
        self.posterior = variational.GaussianPosterior(width, start, mean_residual=config.mean_residual)
        self.generator = PromptGenerator(
            width, config.tokens, residual=config.residual, keep_latent=config.keep_latent,
            layer=config.layer, init=words, std=config.words_std,
        )  # fmt: skip

    @property
    def prediction_scale(self) -> float:
        return 1 / self.config.prediction_temperature

    @property
    def plan_temperature(self) -> float:
        return self.config.ct_temperature or 1 / self.backbone.logit_scale

    def prepare(self, classes: Sequence[str], template: str) -> None:
        super().prepare(classes, template)
        free = self.config.prompts == "free"
        slots = self.config.tokens if free else self.generator.prefix_length
        ending = template.partition("{}")[2] if self.config.ending == "template" else "."
        tokenizer, own = self.backbone.tokenizer, self.config.name_tokens == "own"
        if own:
            prompts = named_prompts(tokenizer, classes, slots, ending=ending)
        else:
            prompts = [slot_prompt(tokenizer, slots + 1, ending) for _ in classes]
        rough = self.config.text_products == "bfloat16"
        self._engine = TextEngine(self.backbone, prompts, rough_training=rough)
        if not (free and own):
            embed = name_features if self.config.label_embedding == "tower" else name_embeddings
            self._names = embed(self.backbone, classes)

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        config, kl = self.config, None
        if config.prompts == "free" or not config.sampling:
            features = self.class_features(1, generator)
        else:
            mean, log_variance = self.posterior(self._names)
            apart = variational.gaussian_kl(mean, log_variance, self._names, self.prior_std)
            kl = variational.reduce_kl(apart, config.kl_reduction, examples)
            drawn = variational.sample(
                mean, log_variance, config.train_samples, generator, antithetic=config.antithetic
            )
            features = self._engine(self._named(self.generator(drawn)))
        self._seen = batch.images.patches
        logits = similarity.class_logits(batch.images.global_, features, self.backbone.logit_scale)
        likely = similarity.log_likelihood(logits, batch.labels)
        transport = self._transport(batch, features, logits) if config.ct_weight else None
        elbo = combined_elbo(likely, kl, transport, config.kl_weight, config.ct_weight, config.likelihood)
        return {**elbo._asdict(), "accuracy": accuracy(logits, batch.labels)}

    def _transport(
        self, batch: Batch, features: Float[Tensor, "s c d"], logits: Float[Tensor, "s b c"]
    ) -> Float[Tensor, "s b"]:
        """L_CT (or its OT variant) between each image's patches and the prompts, weighted by p(y|x)."""
        config, log_weights = self.config, logits.log_softmax(-1)
        if not config.ct_gradient:
            log_weights = log_weights.detach()
        if config.transport == "ot":
            return entropic_transport(batch.images.patches, features, log_weights)
        balance = None if config.ct_sum else config.ct_balance
        plans = balance, self.plan_temperature, config.ct_plan
        return conditional_transport(batch.images.patches, features, log_weights, *plans).total

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c d"]:
        return self._engine(self._named(self.prompt_vectors(samples, generator)))

    def _named(self, prefix: Float[Tensor, "s k b w"]) -> Float[Tensor, "s c n w"]:
        """t_c = [v_c, e_c], where e_c stands for the name; else the prefix, before the name's own tokens."""
        if self.config.name_tokens == "own":
            return prefix
        names = self._names.to(prefix)[:, None].expand(len(prefix), -1, -1, -1)
        return torch.cat([prefix.expand(-1, len(self._names), -1, -1), names], dim=2)

    def combine(self, features: Float[Tensor, "s c d"]) -> Float[Tensor, "k c d"]:
        one = self.config.reading == "features"
        return similarity.mean_features(features).unsqueeze(0) if one else features

    def prompt_vectors(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s k b w"]:
        if self.config.prompts == "free":
            return self.context[None, None]
        mean, log_variance = self.posterior(self._names)
        if not self.config.sampling or self.config.reading == "mean":
            return self.generator(mean[None])
        keys = [name_key(read_name(label)) for label in self.classes]
        noise = variational.noise_of_names(keys, samples, mean.shape[1], generator)
        return self.generator(variational.reparameterise(mean, log_variance, noise))

    def batch_for(self, examples: int) -> int:
        """A step costs about the same for 32 images as for 128: the text tower takes most of it."""
        return min(max(32, examples // 12), 128)

    def epochs_for(self, shots: int) -> int:
        return 100 if shots <= 1 else 200 if shots <= 4 else 400

    @torch.no_grad()
    def diagnostics(self, generator: torch.Generator) -> dict[str, float]:
        """Whether the parts of the method do anything.

        `posterior_std`: σ. `sampled_cosine`: of two sampled prompts of one class; 1 is mode collapse.
        `token_cosine`: of two prefix tokens v of one prompt; 1: they are copies, and b is as good as 1.
        `plan_entropy`: of π(u|g) on the last batch, in nats; ln M: the transport looks nowhere.
        """
        config, found = self.config, {}
        prefix = self.prompt_vectors(4, generator)
        tokens = prefix[:, :, int(config.prompts == "generated" and config.keep_latent) :]
        features = self._engine(self._named(prefix))
        if config.prompts == "generated" and config.sampling:
            found["posterior_std"] = (0.5 * self.posterior(self._names)[1]).exp().mean().item()
            if len(features) > 1:
                found["sampled_cosine"] = similarity.pair_cosine(features).mean().item()
        if config.tokens > 1:
            found["token_cosine"] = similarity.pair_cosine(tokens.movedim(2, 0)).mean().item()
        if self._seen is not None:
            patches = self._seen[:LOOKED_AT].to(features.device)
            entropy = plan_entropy(patches, features, self.plan_temperature, config.ct_plan)
            found["plan_entropy"] = entropy.item()
        return found

    def counted_parameters(self) -> int:
        positions = 0 if self.config.prompts == "free" else self.generator.positions.numel()
        return super().counted_parameters() - positions


def name_embeddings(backbone: Backbone, classes: Sequence[str]) -> Float[Tensor, "c w"]:
    """e_c: the mean of the token embeddings of a class name's own tokens."""
    ids = (torch.tensor(name_tokens(backbone.tokenizer, one), device=backbone.device) for one in classes)
    tokens = (backbone.token_embedding(own) for own in ids)
    return torch.stack([similarity.at_least_float32(own).mean(dim=0) for own in tokens])


@torch.no_grad()
def name_features(backbone: Backbone, classes: Sequence[str]) -> Float[Tensor, "c w"]:
    """e_c in its other reading: the text tower's output for the name.

    Where that has not the tokens' width (RN50: 1,024 for 512) it is taken back through its projection.
    """
    tower, texts = backbone.textual, similarity.at_least_float32(sentence_features(backbone, classes, "{}"))
    if backbone.embed_dim == backbone.text_width:
        return texts
    features = texts.double()
    if tower.reads_last:  # SigLIP's head is a linear layer
        features, projection = features - tower.text_head.bias, tower.text_head.weight.T
    else:
        projection = tower.text_projection
    return (features @ torch.linalg.pinv(projection.double())).to(texts)
