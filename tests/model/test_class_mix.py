"""Classes that come otherwise than in training: answers and promises for such images."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbprompt.errors import InputError
from pbprompt.evidence.conjugate import Conjugate, ConjugateConfig
from pbprompt.learners.method import build_method, make_config
from pbprompt.model.class_mix import estimated, ratio, read_mix, shares, skew_words
from pbprompt.model.folder import describe_model
from pbprompt.model.metrics.selective import sure_threshold
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method
from pbprompt.vision.towers.backbone import Encoded

CLASSES = ("cat", "golden_retriever", "traffic light")
COUNTS = torch.tensor([12.0, 3.0, 6.0], dtype=torch.float64)


def fitted(backbone, kind="conjugate") -> TunedModel:
    made = find_method(kind)
    config = ConjugateConfig(prior="sentence") if made is Conjugate else make_config(made)
    method = build_method(made, config, backbone, seed=0)
    method.prepare(CLASSES, "a photo of a {}.")
    labels = torch.arange(3).repeat_interleave(COUNTS.long())
    method.begin(noise(backbone, len(labels), 1), labels, seed=0)
    method.finish()
    return TunedModel(method, describe_model(method))


def noise(backbone, n: int, seed: int) -> Encoded:
    x = torch.randn(n, backbone.embed_dim, generator=torch.Generator().manual_seed(seed))
    return Encoded(x, x.unsqueeze(1))


def test_shares_and_how_much_more_often_classes_come():
    wanted = shares({"cat": 1, "traffic light": 3}, CLASSES, COUNTS)
    assert wanted.tolist() == [0.25, 0.0, 0.75]
    assert ratio(wanted, COUNTS).tolist() == pytest.approx([0.25 * 21 / 12, 0.0, 0.75 * 21 / 6])
    with_a_name = torch.cat([COUNTS, COUNTS.new_zeros(1)])
    even = shares("balanced", (*CLASSES, "zebra"), with_a_name)
    assert even.tolist() == pytest.approx([1 / 3] * 3 + [0])
    assert float(ratio(even, with_a_name)[3]) == 1  # keeps its odds
    for mix in ("often", {"zebra": 1}, {"cat": -1, "golden_retriever": 2}, {}):
        with pytest.raises(InputError, match="class_mix"):
            shares(mix, (*CLASSES, "zebra"), with_a_name)


def test_a_file_of_frequencies(tmp_path):
    file = tmp_path / "mix.txt"
    file.write_text("Golden Retriever: 30\ncat: 0.5\n")
    assert read_mix(file, CLASSES) == {"cat": 0.5, "golden_retriever": 30, "traffic light": 0}
    for text, says in (
        ("dog: 1", "no class is called 'dog'"),
        ("cat: many", "class 'cat' comes 'many' times"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=says):
            read_mix(file, CLASSES)


def test_the_mix_of_images_is_found_from_answers_under_another():
    random = np.random.default_rng(0)
    true, counts = np.array([0.05, 0.75, 0.2]), torch.tensor([60.0, 20.0, 20.0, 0.0], dtype=torch.float64)
    y = random.choice(3, 4000, p=true)
    x = random.normal(size=(4000, 3)) + 1.5 * np.eye(3)[y]  # ln p(x | c) = 1.5 x_c + constant
    logits = torch.tensor(1.5 * x) + (counts[:3] / counts.sum()).log()
    p = torch.cat([logits.softmax(1), torch.zeros(4000, 1)], dim=1)
    found = estimated(p, counts)
    assert found.tolist() == pytest.approx([*true, 0], abs=0.03)
    assert float(p.mean(0)[0]) > 0.2  # counting answers would not do


def test_answers_and_left_out_images_are_as_for_such_images(tiny_vit):
    model = fitted(tiny_vit).with_left_out()
    mixed = model.for_class_mix({"cat": 1, "golden_retriever": 3})
    images = noise(tiny_vit, 5, 2)
    before, after = (one.predict(images).probabilities for one in (model, mixed))
    expected = before * torch.tensor([0.25 / 12, 0.75 / 3, 0])
    torch.testing.assert_close(after, expected / expected.sum(1, keepdim=True), atol=1e-5, rtol=1e-4)
    judged = mixed.calibration
    assert judged.labels == tuple(name for name in model.calibration.labels if name != CLASSES[2])
    weights = dict(zip(judged.labels, judged.weights.tolist(), strict=True))
    assert weights == pytest.approx({"cat": 15 * 0.25 / 12, "golden_retriever": 15 * 0.75 / 3})
    assert judged.accepted(0.0).images == pytest.approx(15)
    assert isinstance(mixed.rule(0.9, 0.5).quantile, tuple)  # sets of each class hold for any mix
    assert sum(model.estimated_mix(images).values()) == pytest.approx(1)
    learned = mixed.partial_fit(images, ["cat"] * 5)
    assert learned.class_mix == mixed.class_mix and learned.class_counts()[0] == 17


def test_a_method_that_does_not_count_its_images_says_so(tiny_vit):
    with pytest.raises(InputError, match="nearest-mean does not tell how frequent"):
        fitted(tiny_vit, "nearest-mean").for_class_mix("balanced")


def test_skew_is_told():
    assert "12 training images of cat, 3 of golden_retriever" in skew_words(CLASSES, COUNTS)
    assert not skew_words(CLASSES, torch.tensor([3.0, 2.0, 0.0]))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(10, 50), st.booleans()), min_size=1, max_size=60), st.sampled_from((2, 7))
)
def test_equal_weights_change_nothing(answers, weight):
    confidence, right = zip(*((step / 50, hit) for step, hit in answers), strict=True)
    alone = sure_threshold(confidence, right, 0.7)
    assert sure_threshold(confidence, right, 0.7, weights=[weight] * len(right)) == alone


@pytest.mark.parametrize(("weight", "keeps"), [(1.0, False), (5.0, True)])
def test_a_weighted_promise_holds_for_the_images_to_come(weight, keeps):
    """A class of one image in six, wrong more often: for images of which half are of it, by their weight."""
    random, broken, promised = np.random.default_rng(1), 0, 0
    right_of, accuracy = np.array([0.99, 0.85]), 0.8  # of each class, at a confidence of 1
    y = np.repeat([0, 1], [2000, 400])
    for _ in range(150):
        confidence = random.uniform(0.5, 1, len(y))
        right = random.random(len(y)) < right_of[y] - 0.8 * (1 - confidence)
        threshold = sure_threshold(confidence, right, accuracy, weights=np.array([1.0, weight])[y])
        promised += threshold < 1
        broken += threshold < 1 and right_of.mean() - 0.4 * (1 - threshold) < accuracy
    assert promised > 70 and (broken / 150 < 0.12) == keeps  # one in ten, give or take
