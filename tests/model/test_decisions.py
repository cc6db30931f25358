"""What is decided of each image: by a rule, for classes that come otherwise than in training, by costs."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbprompt.errors import InputError
from pbprompt.evidence.conjugate import Conjugate, ConjugateConfig
from pbprompt.learners.method import build_method, make_config
from pbprompt.learners.predictive import Predictive
from pbprompt.model.decisions import (
    NO_RULE,
    Rule,
    checked_costs,
    estimated,
    least_costly,
    losses,
    ratio,
    read_costs,
    read_mix,
    shares,
    skew_words,
)
from pbprompt.model.folder import describe_model
from pbprompt.model.metrics.selective import sure_threshold
from pbprompt.model.predictor import predictive
from pbprompt.model.tuned import TunedModel
from pbprompt.prompts.pbprompt.model import PBPrompt
from pbprompt.registry import find_method
from pbprompt.vision.towers.backbone import Encoded

CLASSES = ("cat", "dog", "car", "bus")


def predictions(predictor, images, rule=NO_RULE):
    model = TunedModel(predictor.method, describe_model(predictor.method), samples=len(predictor.bank))
    return model.predict(images, rule)


@pytest.fixture
def predictor(tiny_vit):
    method = build_method(PBPrompt, make_config(PBPrompt, overrides=["initial_std=0.2"]), tiny_vit, seed=1)
    method.prepare(CLASSES, "a {}.")
    return predictive(method, samples=5)


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(0)
    return Encoded(torch.randn(12, 32, generator=generator), torch.randn(12, 3, 32, generator=generator))


def test_numbers_are_the_predictors(predictor, images):
    said = predictor(images)
    for at, record in enumerate(predictions(predictor, images)):
        row = said.probabilities[at].tolist()
        assert list(record.scores) == list(CLASSES)
        assert list(record.scores.values()) == pytest.approx(row, abs=1e-6)
        assert record.label == CLASSES[row.index(max(row))]
        assert record.score == pytest.approx(max(row), abs=1e-6)
        assert record.entropy == pytest.approx(said.entropy[at].item(), abs=1e-6)
        assert record.epistemic == pytest.approx(said.mutual_information[at].item(), abs=1e-6)
        assert record.spread == pytest.approx(said.spread[at].item(), abs=1e-6)
        assert record.unsure is None and record.prediction_set is None


def test_unsure_is_below_the_threshold_and_not_at_it(predictor, images):
    scores = sorted(record.score for record in predictions(predictor, images))
    records = predictions(predictor, images, Rule(threshold=scores[5]))
    assert [record.unsure for record in records] == [record.score < scores[5] for record in records]
    assert sum(bool(record.unsure) for record in records) == 5
    assert all(record.unsure for record in predictions(predictor, images, Rule(threshold=math.inf)))


def test_sets_hold_the_likely_classes_and_always_one(predictor, images):
    for record in predictions(predictor, images, Rule(quantile=0.8)):
        ordered = sorted(record.scores.items(), key=lambda pair: -pair[1])
        likely = tuple(name for name, score in ordered if 1 - score <= 0.8)
        assert record.prediction_set == (likely or (record.label,))
    for record in predictions(predictor, images, Rule(quantile=-1.0)):
        assert record.prediction_set == (record.label,)
    for record in predictions(predictor, images, Rule(quantile=math.inf)):
        assert set(record.prediction_set) == set(CLASSES)


def test_what_goes_to_a_mere_name_is_not_none_of_these(tiny_vit):
    chance = torch.Generator().manual_seed(0)
    means = 3 * torch.randn(2, tiny_vit.embed_dim, generator=chance)
    labels = torch.arange(40) % 2
    x = means[labels] + torch.randn(40, tiny_vit.embed_dim, generator=chance)
    method = build_method(Conjugate, ConjugateConfig(), tiny_vit, seed=0)
    method.prepare(CLASSES[:2], "a {}.")
    method.begin(Encoded(x, x.unsqueeze(1)), labels)
    far = torch.randn(200, tiny_vit.embed_dim, generator=chance)
    rule = Rule(refusal=0.05)
    alone = predictions(predictive(method), Encoded(far, far.unsqueeze(1)), rule)
    assert any(one.unknown for one in alone)
    method.prepare(CLASSES[:3], "a {}.")
    for before, one in zip(
        alone, predictions(predictive(method), Encoded(far, far.unsqueeze(1)), rule), strict=True
    ):
        assert one.familiarity == before.familiarity
        assert one.unknown == (before.unknown and one.label != "car")


SKEWED = ("cat", "golden_retriever", "traffic light")
COUNTS = torch.tensor([12.0, 3.0, 6.0], dtype=torch.float64)


def fitted(backbone, kind="conjugate") -> TunedModel:
    made = find_method(kind)
    config = ConjugateConfig(prior="sentence") if made is Conjugate else make_config(made)
    method = build_method(made, config, backbone, seed=0)
    method.prepare(SKEWED, "a photo of a {}.")
    labels = torch.arange(3).repeat_interleave(COUNTS.long())
    method.begin(noise(backbone, len(labels), 1), labels)
    return TunedModel(method, describe_model(method))


def noise(backbone, n: int, seed: int) -> Encoded:
    x = torch.randn(n, backbone.embed_dim, generator=torch.Generator().manual_seed(seed))
    return Encoded(x, x.unsqueeze(1))


def test_shares_and_how_much_more_often_classes_come():
    wanted = shares({"cat": 1, "traffic light": 3}, SKEWED, COUNTS)
    assert wanted.tolist() == [0.25, 0.0, 0.75]
    assert ratio(wanted, COUNTS).tolist() == pytest.approx([0.25 * 21 / 12, 0.0, 0.75 * 21 / 6])
    with_a_name = torch.cat([COUNTS, COUNTS.new_zeros(1)])
    even = shares("balanced", (*SKEWED, "zebra"), with_a_name)
    assert even.tolist() == pytest.approx([1 / 3] * 3 + [0])
    assert float(ratio(even, with_a_name)[3]) == 1  # keeps its odds
    for mix in ("often", {"zebra": 1}, {"cat": -1, "golden_retriever": 2}, {}):
        with pytest.raises(InputError, match="class_mix"):
            shares(mix, (*SKEWED, "zebra"), with_a_name)


def test_a_file_of_frequencies(tmp_path):
    file = tmp_path / "mix.txt"
    file.write_text("Golden Retriever: 30\ncat: 0.5\n")
    assert read_mix(file, SKEWED) == {"cat": 0.5, "golden_retriever": 30, "traffic light": 0}
    for text, says in (
        ("dog: 1", "no class is called 'dog'"),
        ("cat: many", "class 'cat' comes 'many' times"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=says):
            read_mix(file, SKEWED)


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
    assert judged.labels == tuple(name for name in model.calibration.labels if name != SKEWED[2])
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
    assert "12 training images of cat, 3 of golden_retriever" in skew_words(SKEWED, COUNTS)
    assert not skew_words(SKEWED, torch.tensor([3.0, 2.0, 0.0]))


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


ANIMALS = ("cat", "dog", "toad")


def cheapest_of(costs, *probabilities):
    shown = np.array(probabilities)
    return [name for name, _ in least_costly(shown, ANIMALS, losses(costs, ANIMALS))]


def test_all_alike_is_the_likeliest():
    shown = np.random.default_rng(0).dirichlet(np.ones(3), 200)
    found = least_costly(shown, ANIMALS, losses({}, ANIMALS))
    assert [name for name, _ in found] == [ANIMALS[at] for at in shown.argmax(1)]
    assert [score for _, score in found] == pytest.approx(shown.max(1).tolist())


def test_a_costly_confusion_is_avoided():
    # a toad taken for a cat costs 10: 0.1 · 10 > 0.6 · 1
    assert cheapest_of({("toad", "cat"): 10}, [0.6, 0.3, 0.1], [0.97, 0.01, 0.02]) == ["dog", "cat"]
    assert losses({("toad", "cat"): 10}, ANIMALS) == ((0, 1, 1), (1, 0, 1), (10, 1, 0))


def test_unsure_is_chows_rule_and_a_threshold_for_each_class():
    shown = np.random.default_rng(1).dirichlet(np.ones(3) / 2, 300)
    found = cheapest_of({("*", "unsure"): 0.2}, *shown)
    assert found == [ANIMALS[row.argmax()] if row.max() > 0.8 else "" for row in shown]
    costs = {("*", "unsure"): 0.2, ("*", "toad"): 4}  # from 0.8 on, toads from 0.95 on
    assert cheapest_of(costs, [0.85, 0.1, 0.05], [0, 0.1, 0.9], [0, 0.04, 0.96]) == ["cat", "", "toad"]


def test_the_rule_gives_it_as_the_answer():
    said = Predictive.of_logits(torch.tensor([[[0.0, 0.1, -9.0]]])).of_classes(ANIMALS)
    (one,) = Rule(costs=losses({("dog", "cat"): 0.5}, ANIMALS)).decide(said, [False] * 3)
    assert one.label == "dog" and one.answer[0] == "cat" and one.to_dict()["answer"] == "cat"


def test_of_a_file(tmp_path):
    file = tmp_path / "costs.csv"
    file.write_text("class,answer,cost\nToad,cat,10\n\n*,unsure,0.3\n")
    assert read_costs(file, ANIMALS) == {("toad", "cat"): 10, ("*", "unsure"): 0.3}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no costs in it"),
        ("toad,cat\n", "is no line `class,answer,cost`"),
        ("toad,cat,much\n", "'much' is no number"),
        ("frog,cat,2\n", "no class is called 'frog'"),
        ("unsure,cat,2\n", "no class is called 'unsure'"),
        ("cat,dog,-1\n", "give a number, 0 or more"),
        ("cat,dog,nan\n", "give a number, 0 or more"),
        ("cat,cat,2\n", "a right answer"),
    ],
)
def test_a_file_that_is_wrong_says_how(tmp_path, text, says):
    file = tmp_path / "costs.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=says):
        read_costs(file, ANIMALS)


def test_names_as_the_classes_are_spelt():
    assert checked_costs({("CAT", "dog"): 2}, ANIMALS, "costs") == {("cat", "dog"): 2}
