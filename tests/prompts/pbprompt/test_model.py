"""PBPrompt against the whole method written out in float64: terms, gradients, draws and readings."""

import math

import pytest
import torch
from plain_text import named_prompt
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.learners.method import Batch, build_method, make_config
from pbprompt.model.predictor import predictive
from pbprompt.prompts.pbprompt.model import PBPrompt, PBPromptConfig, name_features
from pbprompt.prompts.pbprompt.variational import noise_of_names
from pbprompt.vision.images.names import name_key
from pbprompt.vision.towers.backbone import BackboneConfig, Encoded, random_backbone
from pbprompt.vision.towers.engine import encode_texts
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.vit import VitConfig

CLASSES = ("cat", "golden retriever", "road_vehicle")
IMAGES, PATCHES, EXAMPLES, SEED = 4, 5, 24, 11
COMBINATIONS = [
    (preset, variant)
    for preset in ("default", "paper", "literal")
    for variant in ("", "b-prompt", "p-prompt", "without-sampling", "ot")
]


def made(backbone, preset="default", variant="", *overrides, classes=CLASSES):
    """A method whose parameters have left their start, so that every one of them matters."""
    method = build_method(PBPrompt, make_config(PBPrompt, preset, variant, overrides), backbone, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    method.to(backbone.dtype).prepare(classes, "a photo of a {}.")
    return method


def batch_of(dim, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(IMAGES, dim, generator=generator, dtype=dtype)
    patches = torch.randn(IMAGES, PATCHES, dim, generator=generator, dtype=dtype)
    return Batch(Encoded(images, patches), torch.tensor([0, 2, 1, 2]))


def noise(seed=SEED):
    return torch.Generator().manual_seed(seed)


# ---------------------------------------------------------------- the method once more, step by step


def label_embeddings(method, classes):
    backbone = method.backbone
    if method.config.label_embedding == "tower":
        said = encode_texts(backbone, [name.replace("_", " ") for name in classes]).double()
        inverse = torch.linalg.pinv(backbone.textual.text_projection.double())
        return [row.to(backbone.dtype) for row in said @ inverse]
    ids = [backbone.tokenizer.encode(name.replace("_", " ")) for name in classes]
    return [torch.stack([backbone.token_embedding(torch.tensor(i)) for i in row]).mean(0) for row in ids]


def posterior(method, embedding):
    mean = method.posterior.mean.weight @ embedding + method.posterior.mean.bias
    if method.config.mean_residual:
        mean = mean + embedding
    log_variance = method.posterior.log_variance.weight @ embedding + method.posterior.log_variance.bias
    return mean, torch.exp(log_variance / 2)


def attend(method, latent):
    """Self-Attn([r, w_1, …, w_b]) with positions, eight heads, token by token."""
    layer = method.generator
    inputs = [latent + layer.positions[0]]
    inputs += [layer.words[i] + layer.positions[i + 1] for i in range(len(layer.words))]
    if method.config.layer != "attention":
        outputs = transformer_layer(layer.layer, inputs, method.config.layer)
        return outputs if method.config.keep_latent else outputs[1:]
    outputs = self_attention(inputs, layer.in_proj.weight, layer.in_proj.bias, layer.out_proj)
    if method.config.residual:
        outputs = [own + mixed for own, mixed in zip(inputs, outputs, strict=True)]
    return outputs if method.config.keep_latent else outputs[1:]


def transformer_layer(layer, inputs, kind):
    """Vaswani et al. (2017), their norms behind the parts, or before them."""

    def normed(norm, rows):
        return [(x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt() * norm.weight + norm.bias for x in rows]

    def fed(rows):
        return [
            layer.linear2.weight @ torch.relu(layer.linear1.weight @ x + layer.linear1.bias)
            + layer.linear2.bias
            for x in rows
        ]

    def attended(rows):
        own = layer.self_attn
        return self_attention(rows, own.in_proj_weight, own.in_proj_bias, own.out_proj)

    for part, norm in ((attended, layer.norm1), (fed, layer.norm2)):
        if kind == "pre-norm":
            inputs = [x + y for x, y in zip(inputs, part(normed(norm, inputs)), strict=True)]
        else:
            inputs = normed(norm, [x + y for x, y in zip(inputs, part(inputs), strict=True)])
    return inputs


def self_attention(inputs, weight, bias, out):
    width = len(inputs[0])
    size = width // 8
    q, k, v = (
        [weight[j * width : (j + 1) * width] @ x + bias[j * width : (j + 1) * width] for x in inputs]
        for j in range(3)
    )
    outputs = []
    for i in range(len(inputs)):
        heads = []
        for h in range(8):
            part = slice(h * size, (h + 1) * size)
            scores = torch.stack(
                [torch.exp(q[i][part] @ k[j][part] / math.sqrt(size)) for j in range(len(k))]
            )
            heads.append(sum(scores[j] / scores.sum() * v[j][part] for j in range(len(v))))
        outputs.append(out.weight @ torch.cat(heads) + out.bias)
    return outputs


def encode(backbone, prefix, name):
    return named_prompt(backbone, torch.stack(list(prefix)), name)


def prompt_feature(method, prefix, name, embedding):
    """t_c = [v_c, e_c] through the tower, where e_c is the mean, or the name's own tokens."""
    if method.config.name_tokens == "mean":
        prefix, name = [*prefix, embedding], ""
    return encode(method.backbone, prefix, name)


def cosine(a, b):
    return (a @ b) / (a @ a).sqrt() / (b @ b).sqrt()


def text_features(method, classes, draws, seed, *, training=False):
    """g_c of every draw and class, as lists; a step draws the noise of all classes at once."""
    config, labels = method.config, label_embeddings(method, classes)
    named = [*zip(classes, labels, strict=True)]
    if config.prompts == "free":
        return [[prompt_feature(method, list(method.context), *own) for own in named]]
    if not config.sampling or draws is None:
        latents = [[posterior(method, e)[0] for e in labels]]
    else:
        if training:
            epsilon = torch.randn(draws, len(classes), len(labels[0]), generator=noise(seed)).double()
        else:
            epsilon = noise_of_names([*map(name_key, classes)], draws, len(labels[0]), noise(seed)).double()
        latents = [
            [posterior(method, e)[0] + posterior(method, e)[1] * epsilon[s, c] for c, e in enumerate(labels)]
            for s in range(draws)
        ]
    return [
        [prompt_feature(method, attend(method, r), *own) for r, own in zip(row, named, strict=True)]
        for row in latents
    ]


def probabilities(backbone, image, prompts):
    powers = torch.stack([backbone.logit_scale * cosine(image, g) for g in prompts])
    powers = torch.exp(powers - powers.max().detach())
    return powers / powers.sum()


def kl_divergence(method, classes):
    """KL[N(μ, σ²) ‖ N(e, s²)], dimension by dimension."""
    values = []
    for e in label_embeddings(method, classes):
        mean, std = posterior(method, e)
        s = method.config.prior_std
        if method.config.std_unit == "embedding":
            table = method.backbone.textual.token_embedding.weight.double()
            s *= (table**2).mean().item() ** 0.5
        values.append(torch.log(s / std) + (std**2 + (mean - e) ** 2) / (2 * s**2) - 0.5)
    total = torch.stack(values)
    return {"elbo": total.sum() / EXAMPLES, "mean": total.mean(), "sum": total.sum()}[
        method.config.kl_reduction
    ]


def conditional_transport(config, scale, patches, prompts, p):
    temperature = config.ct_temperature or 1 / scale
    alike = cosine if config.ct_plan == "cosine" else torch.dot
    towards = backwards = 0.0
    for u in patches:
        plan = torch.stack([p[c] * torch.exp(alike(u, g) / temperature) for c, g in enumerate(prompts)])
        for c, g in enumerate(prompts):
            towards = towards + (1 - cosine(u, g)) * plan[c] / plan.sum() / len(patches)
    for c, g in enumerate(prompts):
        plan = torch.stack([torch.exp(alike(u, g) / temperature) for u in patches])
        for m, u in enumerate(patches):
            backwards = backwards + p[c] * (1 - cosine(u, g)) * plan[m] / plan.sum()
    if config.ct_sum:
        return towards + backwards
    return config.ct_balance * towards + (1 - config.ct_balance) * backwards


def optimal_transport(patches, prompts, p):
    """Sinkhorn as Sinkhorn wrote it: rows and columns scaled in turn; the plan is a constant."""
    cost = torch.stack([torch.stack([1 - cosine(u, g) for g in prompts]) for u in patches])
    kernel = torch.exp(-cost.detach() / 0.1)
    columns = torch.ones(len(prompts), dtype=torch.float64)
    for _ in range(100):
        rows = (1 / len(patches)) / (kernel @ columns)
        columns = p.detach() / (kernel.T @ rows)
    return (rows[:, None] * kernel * columns * cost).sum()


def reference_terms(method, batch, seed=SEED):
    config, backbone = method.config, method.backbone
    draws = text_features(method, CLASSES, config.train_samples, seed, training=True)
    zero = torch.zeros((), dtype=torch.float64)
    likelihoods, transports = [], []
    for prompts in draws:
        row = []
        for image, patches, label in zip(*batch.images, batch.labels, strict=True):
            p = probabilities(backbone, image, prompts)
            row.append(p[label])
            weights = p if config.ct_gradient else p.detach()
            if config.ct_weight and config.transport == "ot":
                transports.append(optimal_transport(patches, prompts, weights))
            elif config.ct_weight:
                transports.append(
                    conditional_transport(config, backbone.logit_scale, patches, prompts, weights)
                )
        likelihoods.append(torch.stack(row))
    p = torch.stack(likelihoods)
    nll = -torch.log(p).mean() if config.likelihood == "mean_of_logs" else -torch.log(p.mean(0)).mean()
    generated = config.prompts == "generated"
    kl = kl_divergence(method, CLASSES) if generated and config.sampling else zero
    transport = torch.stack(transports).mean() if transports else zero
    total = nll + config.kl_weight * kl + config.ct_weight * transport
    return {"total": total, "nll": nll, "kl": kl, "transport": transport}


# ---------------------------------------------------------------- training terms


def assert_same_terms_and_gradients(method):
    batch = batch_of(method.backbone.embed_dim)
    found = method.loss(batch, noise(), EXAMPLES)
    wanted = reference_terms(method, batch)
    rounded = method.config.std_unit == "embedding"  # which is computed in float32
    rtol = 1e-6 if rounded else 1e-8
    for name, value in wanted.items():
        torch.testing.assert_close(
            found[name], value, rtol=rtol, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}"
        )
    parameters = dict(method.named_parameters())
    one, two = (
        torch.autograd.grad(terms["total"], list(parameters.values()), allow_unused=True)
        for terms in (found, wanted)
    )
    for name, a, b in zip(parameters, one, two, strict=True):
        assert (a is None) == (b is None), name
        if a is not None:
            torch.testing.assert_close(a, b, rtol=rtol, atol=rtol * b.abs().max().item(), msg=name)


@pytest.mark.parametrize(("preset", "variant"), COMBINATIONS)
def test_terms_and_gradients_are_the_equations(double_vit, preset, variant):
    assert_same_terms_and_gradients(made(double_vit, preset, variant))


@pytest.mark.parametrize(
    "overrides",
    [
        ("keep_latent=false", "kl_reduction=mean"),
        ("residual=false", "kl_reduction=sum", "train_samples=3"),
        ("likelihood=mean_of_logs", "ct_gradient=true", "ct_balance=0.2"),
        ("ct_temperature=0", "ct_weight=0.3", "prior_std=2"),
        ("ct_temperature=0.1", "ct_balance=1", "mean_residual=false"),
        ("tokens=2", "words=''", "initial_std=0"),
        ("words=''", "words_std=0.1414", "ct_sum=true", "ct_plan=product"),
        ("layer=pre-norm", "name_tokens=mean", "label_embedding=tower"),
        ("layer=post-norm", "keep_latent=false"),
        ("prediction_temperature=3",),  # of predictions alone
    ],
)
def test_every_switch_is_its_equation(double_vit, overrides):
    assert_same_terms_and_gradients(made(double_vit, "default", "", *overrides))


def test_the_ending_may_be_the_templates(double_vit):
    method = made(double_vit, "default", "", "ending=template")
    method.prepare(CLASSES, "a photo of a {}, a type of pet.")
    slots = [-(k + 1) for k in range(5)]
    encode = double_vit.tokenizer.encode
    for prompt, name in zip(method._engine.prompts, CLASSES, strict=True):
        assert prompt[1:-1] == [*slots, *encode(name.replace("_", " ")), *encode(", a type of pet.")]


def test_batch_accuracy(double_vit):
    method, batch = made(double_vit), batch_of(32)
    draws = text_features(method, CLASSES, 2, SEED, training=True)
    right = [
        int(probabilities(double_vit, image, prompts).argmax()) == int(label)
        for prompts in draws
        for image, label in zip(batch.images.global_, batch.labels, strict=True)
    ]
    assert method.loss(batch, noise(), EXAMPLES)["accuracy"].item() == pytest.approx(sum(right) / len(right))


@pytest.mark.parametrize(("preset", "variant"), COMBINATIONS)
def test_the_gradient_reaches_every_parameter(tiny_vit, preset, variant):
    method = made(tiny_vit, preset, variant)
    terms = method.loss(batch_of(32, torch.float32), noise(), EXAMPLES)
    method.backward(terms)
    silent = {n for n, p in method.named_parameters() if p.grad is None or not p.grad.abs().max() > 0}
    unused = {"posterior.log_variance.weight", "posterior.log_variance.bias"}
    assert silent == (unused if variant == "without-sampling" else set())
    assert all(p.dtype == torch.float32 for p in method.parameters())
    assert all(buffer.grad is None for buffer in tiny_vit.buffers())


def test_stored_patches_in_half_precision(tiny_vit):
    method, (images, labels, _) = made(tiny_vit), batch_of(32, torch.float32)
    full = method.loss(Batch(images, labels), noise(), EXAMPLES)
    half = method.loss(Batch(Encoded(images.global_, images.patches.half()), labels), noise(), EXAMPLES)
    assert half["total"].dtype == torch.float32
    assert half["transport"].item() == pytest.approx(full["transport"].item(), abs=1e-3)


def test_products_in_bfloat16_change_the_gradient_a_little(tiny_vit, monkeypatch):
    monkeypatch.setattr("pbprompt.vision.towers.engine.multiplies_bfloat16", lambda device: True)

    def gradient(products):
        method = made(tiny_vit, "default", "", f"text_products={products}")
        method.loss(batch_of(32, torch.float32), noise(), EXAMPLES)["total"].backward()
        return torch.cat([parameter.grad.flatten() for parameter in method.parameters()])

    exact, rough = gradient("exact"), gradient("bfloat16")
    assert 0 < (rough - exact).norm() / exact.norm() < 0.05


def test_a_resnet_backbone(tiny_resnet):
    method = made(tiny_resnet)
    assert torch.isfinite(method.loss(batch_of(32, torch.float32), noise(), EXAMPLES)["total"])


def test_the_label_embedding_may_be_the_text_towers_output(double_vit):
    method = made(double_vit, "paper", "", "label_embedding=tower")
    said = encode_texts(double_vit, [name.replace("_", " ") for name in CLASSES])
    again = method._names.double() @ double_vit.textual.text_projection
    torch.testing.assert_close(again, said, rtol=1e-4, atol=1e-4)  # of width 64; 32 are said


@pytest.mark.parametrize("siglip", [False, True])
def test_a_wider_output_is_taken_before_its_projection(siglip):
    text = TextConfig(77, 49408, width=64, heads=1, layers=1, causal=not siglip, reads_last=siglip)
    backbone = random_backbone(BackboneConfig("RN50's way", 96, VitConfig(16, 16, 64, 1, 1), text))
    tower, state = backbone.textual, name_features(backbone, CLASSES)
    assert state.shape == (3, 64)
    said = encode_texts(backbone, [name.replace("_", " ") for name in CLASSES])
    again = tower.text_head(state) if siglip else state @ tower.text_projection
    torch.testing.assert_close(again, said, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- parameters and start


@pytest.fixture(scope="module")
def wide():
    """The text width of ViT-B/16, one layer deep."""
    text = TextConfig(context_length=77, vocab_size=49408, width=512, heads=8, layers=1)
    return random_backbone(BackboneConfig("wide", 512, VitConfig(16, 16, 64, 1, 1), text))


@pytest.mark.parametrize("preset", ["default", "literal"])
def test_the_papers_parameter_count(wide, preset):
    method = build_method(PBPrompt, make_config(PBPrompt, preset), wide, seed=0)
    assert method.counted_parameters() == 1_577_984
    assert sum(p.numel() for p in method.parameters()) == 1_580_544
    assert sum(v.numel() for v in method.state_dict().values()) == 1_580_544  # no towers among them


def test_p_prompt_counts_its_context(wide):
    method = build_method(PBPrompt, make_config(PBPrompt, "default", "p-prompt"), wide, seed=0)
    assert method.counted_parameters() == 4 * 512


def test_the_start_is_a_function_of_the_seed(tiny_vit):
    config = make_config(PBPrompt, "paper")
    before = torch.get_rng_state()
    one, same, other = (build_method(PBPrompt, config, tiny_vit, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["generator.words"], other["generator.words"])
    assert torch.equal(torch.get_rng_state(), before)


def test_the_default_starts_at_the_words(tiny_vit):
    """Without noise the first prompt is "r a photo of a NAME." with r = e_c."""
    method = build_method(PBPrompt, make_config(PBPrompt, overrides=["reading=mean"]), tiny_vit, seed=0)
    method.prepare(CLASSES, "")
    words = [tiny_vit.token_embedding(torch.tensor(i)) for i in tiny_vit.tokenizer.encode("a photo of a")]
    e = label_embeddings(method, CLASSES)
    for c, name in enumerate(CLASSES):
        wanted = encode(tiny_vit, [e[c], *words], name)
        torch.testing.assert_close(method.class_features(1, noise())[0, c], wanted, rtol=1e-4, atol=1e-5)
    table = tiny_vit.textual.token_embedding.weight
    assert method.diagnostics(noise())["posterior_std"] == pytest.approx(1.56 * table.std().item(), rel=1e-3)


def test_variants_are_what_they_are_called():
    assert make_config(PBPrompt, variant="b-prompt").ct_weight == 0
    paper = make_config(PBPrompt, "paper", "ot", ["ct_weight=0.5"])
    assert (paper.optimiser, paper.transport, paper.ct_weight, paper.kl_weight) == ("sgd", "ot", 0.5, 1.0)
    assert (paper.prior_std, paper.train_samples, paper.ct_temperature, paper.ct_balance) == (1, 1, 1, 0.5)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("papr",), "pbprompt has no preset 'papr': it has new-classes, literal, paper"),
        (("default", "c-prompt"), "no variant 'c-prompt': it has b-prompt"),
        (("default", "", ["ct_wieght=1"]), "did you mean 'ct_weight'"),
        (("default", "", ["batch_size=-1"]), "'batch_size' is -1: it takes 0 or more"),
        (("default", "", ["epochs=-1"]), "'epochs' is -1"),
        (("default", "", ["learning_rate=nan"]), "'learning_rate' is nan"),
        (("default", "", ["train_samples=0"]), "'train_samples' is 0"),
        (("default", "", ["tokens=0"]), "'tokens' is 0"),
        (("default", "", ["prior_std=0"]), "'prior_std' is 0.0"),
        (
            ("default", "", ["prediction_temperature=0"]),
            "'prediction_temperature' is 0.0: it takes a number above",
        ),
        (("default", "", ["prediction_temperature=nan"]), "'prediction_temperature' is nan"),
    ],
)
def test_settings_that_cannot_be(arguments, says):
    with pytest.raises(InputError) as error:
        make_config(PBPrompt, *arguments)
    assert says in str(error.value)


def test_words_must_fit_the_tokens(tiny_vit):
    config = make_config(PBPrompt, overrides=["tokens=3"])
    with pytest.raises(InputError, match="take 4 tokens, but tokens is 3"):
        PBPrompt(config, tiny_vit)


def test_a_class_without_a_token_is_refused(tiny_vit):
    with pytest.raises(InputError, match="holds no token"):
        made(tiny_vit, classes=("cat", " "))


@pytest.mark.parametrize(("shots", "epochs"), [(1, 100), (2, 200), (4, 200), (8, 400), (16, 400)])
def test_the_papers_epochs(tiny_vit, shots, epochs):
    assert made(tiny_vit, "paper").epochs_for(shots) == epochs


# ---------------------------------------------------------------- prediction


def stacked(draws: list[list[Tensor]]) -> Tensor:
    return torch.stack([torch.stack(row) for row in draws]).detach()


@pytest.mark.parametrize(("examples", "size"), [(20, 20), (100, 32), (600, 50), (1600, 128)])
def test_its_own_batch_size_grows_with_the_images(tiny_vit, examples, size):
    assert made(tiny_vit, "default", "", "batch_size=0").images_a_step(examples) == size
    assert made(tiny_vit, "default", "", "batch_size=8").images_a_step(examples) == 8


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_class_features_are_seeded_draws(double_vit, preset):
    method = made(double_vit, preset)
    found = method.class_features(3, noise(5)).detach()
    torch.testing.assert_close(found, stacked(text_features(method, CLASSES, 3, 5)), rtol=1e-6, atol=1e-8)
    assert torch.equal(found, method.class_features(3, noise(5)))
    assert (found - method.class_features(3, noise(6))).abs().max() > 1e-3
    assert (found[0] - found[1]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("variant", "overrides"), [("p-prompt", ()), ("without-sampling", ()), ("", ("reading=mean",))]
)
def test_deterministic_features_are_one_draw(double_vit, variant, overrides):
    method = made(double_vit, "default", variant, *overrides)
    found = method.class_features(20, noise(5)).detach()
    assert found.shape == (1, len(CLASSES), 32)
    assert torch.equal(found, method.class_features(20, noise(6)))
    torch.testing.assert_close(found, stacked(text_features(method, CLASSES, None, 0)), rtol=1e-6, atol=1e-8)


def test_new_class_names_need_no_training(double_vit):
    method = made(double_vit)
    before = {key: value.clone() for key, value in method.state_dict().items()}
    method.prepare(("zebra", "cat", "fire engine", "tench"), "")
    found = method.class_features(2, noise(5)).detach()
    wanted = stacked(text_features(method, method.classes, 2, 5))
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-8)
    assert found.shape == (2, 4, 32)
    assert all(torch.equal(before[key], value) for key, value in method.state_dict().items())


@pytest.mark.parametrize("reading", ["probabilities", "features", "mean"])
def test_the_three_readings(double_vit, reading):
    method = made(double_vit, "default", "", f"reading={reading}")
    images = batch_of(32).images
    found = predictive(method, samples=4, seed=9)(images)
    draws = stacked(text_features(method, CLASSES, None if reading == "mean" else 4, 9))
    if reading == "features":
        unit = draws / draws.norm(dim=-1, keepdim=True)
        draws = unit.mean(0, keepdim=True)
    for i, image in enumerate(images.global_):
        p = torch.stack([probabilities(double_vit, image, list(prompts)) for prompts in draws]).mean(0)
        torch.testing.assert_close(found.probabilities[i], p, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("temperature", [0.5, 1.4])
def test_predictions_are_tempered_draw_by_draw(double_vit, temperature):
    method = made(double_vit, "default", "", f"prediction_temperature={temperature}")
    images = batch_of(32).images
    found = predictive(method, samples=4, seed=9)(images).probabilities
    for i, image in enumerate(images.global_):
        p = [probabilities(double_vit, image, prompts) for prompts in text_features(method, CLASSES, 4, 9)]
        powers = torch.stack(p) ** (1 / temperature)
        wanted = (powers / powers.sum(-1, keepdim=True)).mean(0)
        torch.testing.assert_close(found[i], wanted, rtol=1e-5, atol=1e-9)


def test_diagnostics(double_vit):
    method = made(double_vit)
    found = method.diagnostics(noise(8))
    stds = [posterior(method, e)[1] for e in label_embeddings(method, CLASSES)]
    assert found["posterior_std"] == pytest.approx(torch.stack(stds).mean().item(), rel=1e-6)
    drawn = text_features(method, CLASSES, 4, 8)
    pairs = [
        cosine(drawn[s][c], drawn[t][c]).item()
        for c in range(len(CLASSES))
        for s in range(4)
        for t in range(s + 1, 4)
    ]
    assert found["sampled_cosine"] == pytest.approx(sum(pairs) / len(pairs), rel=1e-6)


def test_diagnostics_show_a_collapse(tiny_vit):
    narrow = build_method(PBPrompt, make_config(PBPrompt, overrides=["initial_std=1e-6"]), tiny_vit, seed=0)
    narrow.prepare(CLASSES, "")
    assert narrow.diagnostics(noise())["sampled_cosine"] == pytest.approx(1, abs=1e-5)
    for variant in ("p-prompt", "without-sampling"):
        assert made(tiny_vit, "default", variant).diagnostics(noise()).keys() == {"token_cosine"}


@pytest.mark.parametrize("plan", ["cosine", "product"])
def test_diagnostics_of_tokens_and_plans(double_vit, plan):
    """Both one pair and one plan at a time; the plans are those of the last batch's images."""
    method, batch = made(double_vit, "default", "", f"ct_plan={plan}"), batch_of(32)
    assert "plan_entropy" not in method.diagnostics(noise(8))
    method.loss(batch, noise(), EXAMPLES)
    found, prefix = method.diagnostics(noise(8)), method.prompt_vectors(4, noise(8))
    pairs = [
        cosine(v[i], v[j]).item() for row in prefix for v in row for i in range(1, 5) for j in range(1, i)
    ]
    assert found["token_cosine"] == pytest.approx(sum(pairs) / len(pairs), rel=1e-6)
    alike, entropies = cosine if plan == "cosine" else torch.dot, []
    for patches in batch.images.patches:
        for g in method.class_features(4, noise(8)).flatten(0, 1):
            p = torch.stack([alike(u, g) for u in patches]).softmax(0)
            entropies.append(-(p * p.log()).sum().item())
    assert found["plan_entropy"] == pytest.approx(sum(entropies) / len(entropies), rel=1e-6)
    assert found["plan_entropy"] <= math.log(PATCHES)


def test_old_classes_keep_their_prompts_to_the_bit(tiny_vit):
    method = build_method(PBPrompt, PBPromptConfig(initial_std=1.0), tiny_vit, seed=1)
    old = ("cat", "red panda", "car")

    def prompts(*classes: str) -> dict[str, torch.Tensor]:
        method.prepare(classes, "a {}.")
        with torch.no_grad():
            drawn = method.prompt_vectors(5, torch.Generator().manual_seed(3))
        return dict(zip(classes, drawn.unbind(1), strict=True))

    before = prompts(*old)
    for classes in ((*old, "owl"), ("owl", "zebra", *old[::-1]), old[:2]):
        after = prompts(*classes)
        assert all(torch.equal(before[name], after[name]) for name in old if name in after)
