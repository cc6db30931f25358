"""Zero-shot CLIP against sentences encoded one by one over all 77 positions."""

import hashlib

import pytest
import torch
from torch import Tensor

from pbprompt.learners import zeroshot
from pbprompt.learners.method import make_config
from pbprompt.learners.zeroshot import CLIP_EIGHTY, CLIP_SEVEN, ENSEMBLE, ZeroShot, ZeroShotConfig
from pbprompt.model.predictor import predictive
from pbprompt.registry import find_method
from pbprompt.vision.similarity import mean_features
from pbprompt.vision.towers.backbone import Backbone, Encoded
from pbprompt.vision.towers.engine import encode_texts

NAMES = ["cat", "golden_retriever", "Boeing 707-320"]
TEMPLATE = "a photo of a {}, a type of thing."


def encoded(backbone: Backbone, sentence: str) -> Tensor:
    """The plain computation on one whole sentence."""
    ids, lengths = backbone.tokenizer([sentence])
    return backbone.text(backbone.token_embedding(ids), lengths)[0]


def images(backbone: Backbone, count: int = 5) -> Encoded:
    generator = torch.Generator().manual_seed(3)
    shape = (count, backbone.embed_dim)
    globals_ = torch.randn(shape, generator=generator, dtype=torch.float64)
    return Encoded(globals_, globals_.new_zeros(count, 0, backbone.embed_dim))


def predicted(backbone: Backbone, config: ZeroShotConfig, x: Encoded) -> Tensor:
    method = ZeroShot(config, backbone)
    method.prepare(NAMES, TEMPLATE)
    return predictive(method)(x).probabilities


def test_one_sentence(double_vit):
    x = images(double_vit)
    g = torch.stack(
        [encoded(double_vit, f"a photo of a {n.replace('_', ' ')}, a type of thing.") for n in NAMES]
    )
    wanted = torch.stack([(100 * torch.cosine_similarity(row, g)).softmax(0) for row in x.global_])
    torch.testing.assert_close(predicted(double_vit, ZeroShotConfig(), x), wanted, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(predicted(double_vit, ZeroShotConfig(), x), wanted, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    ("templates", "sentences"), [("ensemble", ENSEMBLE), ("clip", CLIP_SEVEN), ("clip-80", CLIP_EIGHTY)]
)
def test_several_sentences_count_alike(double_vit, templates, sentences):
    x = images(double_vit)
    g = []
    for name in NAMES:
        total = torch.zeros(double_vit.embed_dim, dtype=torch.float64)
        for template in sentences:
            feature = encoded(double_vit, template.replace("{}", name.replace("_", " ")))
            total += feature / feature.norm()
        g.append(total / len(sentences))
    wanted = torch.stack(
        [(100 * torch.cosine_similarity(row, torch.stack(g))).softmax(0) for row in x.global_]
    )
    found = predicted(double_vit, ZeroShotConfig(templates=templates), x)
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-12)
    assert not torch.allclose(found, predicted(double_vit, ZeroShotConfig(), x), atol=1e-3)


def test_the_80_are_those_of_clips_authors():
    found = hashlib.sha256("\n".join(sorted(CLIP_EIGHTY)).encode()).hexdigest()  # of their list, in order
    assert found == "a8a4822f2921936e2ef07cf2e7a5df69be9532aab2f3f4880156bb03563e2467"
    assert len(CLIP_EIGHTY) == 80 and set(CLIP_SEVEN) < set(CLIP_EIGHTY)


def test_every_template_has_one_place_for_the_name():
    assert len(set(ENSEMBLE)) == len(ENSEMBLE) >= 7
    assert all(template.count("{}") == 1 for template in ENSEMBLE)


def test_it_is_found_by_name_and_learns_nothing(tiny_vit):
    kind = find_method("zeroshot")
    method = kind(make_config(kind, overrides=["templates=ensemble"]), tiny_vit)
    assert method.config.templates == "ensemble"
    assert not method.trains and method.counted_parameters() == 0


def test_the_datas_sentence_is_read_once(double_vit, monkeypatch):
    read = []

    def counted(backbone, texts):
        read.extend(texts)
        return encode_texts(backbone, texts)

    monkeypatch.setattr(zeroshot, "encode_texts", counted)
    names, sentence = ("heron", "egret"), ENSEMBLE[0]
    both = ZeroShot(ZeroShotConfig(templates="both"), double_vit)
    both.prepare(names, sentence)
    ZeroShot(ZeroShotConfig(), double_vit).prepare(names, sentence)
    assert sorted(read) == sorted(text.replace("{}", name) for text in ENSEMBLE for name in names)
    own, *others = (
        encode_texts(double_vit, [text.replace("{}", name) for name in names]) for text in ENSEMBLE
    )
    expected = mean_features(torch.stack([own, mean_features(torch.stack([own, *others]))]))
    assert (both.class_features(1, torch.Generator())[0] == expected).all()


def test_a_description_counts_by_the_mean_of_its_sentences_whatever_the_spelling_of_the_name(double_vit):
    said = ("a tall dog.", "a dog of golden fur.")
    x = images(double_vit)
    own, other = predicted(double_vit, ZeroShotConfig(descriptions=(("Golden Retriever", *said),)), x), []
    for name in NAMES:
        texts = said if name == "golden_retriever" else [TEMPLATE.replace("{}", name)]
        parts = [encoded(double_vit, text) for text in texts]
        other.append(sum(part / part.norm() for part in parts) / len(parts))
    wanted = torch.stack(
        [(100 * torch.cosine_similarity(row, torch.stack(other))).softmax(0) for row in x.global_]
    )
    torch.testing.assert_close(own, wanted, rtol=1e-8, atol=1e-12)
