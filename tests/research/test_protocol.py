"""Each task on the embedded sample set, short but real."""

import json
import pickle
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from pbprompt.errors import InputError
from pbprompt.evidence.rivals.tip_adapter import TipAdapter
from pbprompt.evidence.temperature import fit_temperature
from pbprompt.model.metrics.evaluation import harmonic_mean
from pbprompt.model.metrics.selective import auroc
from pbprompt.research.protocol import prepare_run, run_task
from pbprompt.research.runs import RunConfig, RunRecord, read_line
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.sources import open_dataset

DATA = "sample:openmoji"
SHORT = {"shots": 1, "overrides": ("epochs=2",), "samples": 3}


@pytest.fixture(scope="module")
def bank(lite):
    return FeatureCache(lite, progress=False)


def run(bank, **values):
    config = RunConfig(**{**SHORT, **values})
    record, arrays = run_task(prepare_run(config), bank)
    assert read_line(RunRecord, json.loads(json.dumps(asdict(record))), "records.jsonl") == record
    for name, figures in record.results.items():
        if name != "H":
            hits = arrays[f"{name}/predicted"] == arrays[f"{name}/label"]
            assert figures["accuracy"] == pytest.approx(hits.mean())
            assert figures["images"] == len(hits)
            assert figures["nll"] == pytest.approx(-arrays[f"{name}/log_likelihood"].mean(), rel=1e-4)
    return record, arrays


def by_hand(bank, dataset):
    """Zero-shot predictions from the towers alone."""
    features = bank.encode(dataset.root, dataset.test)
    ids, lengths = bank.backbone.tokenizer([dataset.template.replace("{}", name) for name in dataset.classes])
    text = bank.backbone.text(bank.backbone.token_embedding(ids), lengths)
    image = torch.nn.functional.normalize(features.global_.float(), dim=-1)
    return (image @ torch.nn.functional.normalize(text, dim=-1).T).argmax(1).numpy()


def test_few_shot(bank):
    record, arrays = run(bank, task="few-shot", dataset=DATA)
    assert list(record.results) == [DATA] and len(arrays[f"{DATA}/label"]) == 160
    assert record.settings["epochs"] == 2 and record.backbone.name == "lite"
    assert record.train["total"] > 0
    again, repeated = run(bank, task="few-shot", dataset=DATA)
    assert again.id == record.id
    assert np.array_equal(repeated[f"{DATA}/confidence"], arrays[f"{DATA}/confidence"])


def test_a_tempered_run_says_the_same_less_surely_as_folds_ask_for(bank, monkeypatch):
    values = {"task": "few-shot", "dataset": DATA, "method": "nearest-mean", "shots": 4, "overrides": ()}
    plain, said = run(bank, **values)
    seen = []
    monkeypatch.setattr(
        "pbprompt.research.protocol.fit_temperature",
        lambda *given: seen.append(given) or fit_temperature(*given),
    )
    tempered, softer = run(bank, **values, temper=True)
    assert tempered.id != plain.id
    assert np.array_equal(softer[f"{DATA}/predicted"], said[f"{DATA}/predicted"])
    ((logs, labels),) = seen  # every training image once, by models that were not given it
    drawn = prepare_run(RunConfig(**values)).few
    assert sorted(labels.tolist()) == sorted(item.label for item in drawn.train)
    held = [number % 4 == 0 for number in range(len(drawn.train))]  # the first image of each class
    features = bank.encode(drawn.root, drawn.train)
    x = torch.nn.functional.normalize(features.global_, dim=-1)
    means = torch.stack([x[features.labels == c][1:].mean(0) for c in range(len(drawn.classes))])
    cosines = x[held] @ torch.nn.functional.normalize(means, dim=-1).T
    assert [features.labels[held].tolist(), cosines.argmax(1).tolist()] == [
        labels[: sum(held)].tolist(), logs[: sum(held)].argmax(1).tolist(),
    ]  # fmt: skip
    assert tempered.results[DATA]["nll"] < plain.results[DATA]["nll"]


def test_base_to_new_tests_each_half_in_its_own_names(bank):
    record, arrays = run(bank, task="base-to-new", dataset=DATA, method="coop")
    results = record.results
    assert set(arrays["base/label"]) == set(arrays["new/label"]) == set(range(14))
    assert set(arrays["joint/label"]) == set(range(28))
    assert results["H"]["accuracy"] == harmonic_mean(results["base"]["accuracy"], results["new"]["accuracy"])
    assert results["base"]["images"] + results["new"]["images"] == results["joint"]["images"] == 160
    assert results["joint"]["accuracy"] <= max(results["base"]["accuracy"], results["new"]["accuracy"])
    assert 0 <= results["joint"]["auroc_entropy"] <= 1
    strange = auroc(arrays["joint/none_of_these"], arrays["joint/label"] >= 14)
    assert results["joint"]["auroc_none_of_these"] == strange


def test_zero_shot_is_the_backbones_own_answer_in_every_label_space(bank):
    record, arrays = run(bank, task="base-to-new", dataset=DATA, method="zeroshot", overrides=())
    whole = open_dataset(DATA)
    assert np.array_equal(arrays["joint/predicted"], by_hand(bank, whole))
    new = replace(
        whole,
        classes=whole.classes[14:],
        train=(),
        val=(),
        test=tuple(replace(item, label=item.label - 14) for item in whole.test if item.label >= 14),
    )
    assert np.array_equal(arrays["new/predicted"], by_hand(bank, new))
    assert record.train == {}


def test_a_method_that_reads_the_names_for_every_image_is_prepared_for_each_test(bank):
    arrays = run(bank, task="base-to-new", dataset=DATA, method="tip-adapter", overrides=())[1]
    # the cache holds no images of new classes, so there its answer is zero-shot's
    plain = run(bank, task="base-to-new", dataset=DATA, method="zeroshot", overrides=())[1]
    assert np.array_equal(arrays["new/predicted"], plain["new/predicted"])
    assert not np.array_equal(arrays["base/confidence"], plain["base/confidence"])


def test_domain_shift_tests_other_styles(bank):
    targets = ("sample:twitter", "sample:fluent")
    record = run(bank, task="domain-shift", dataset=DATA, method="coop", targets=targets)[0]
    assert list(record.results) == [DATA, "sample:twitter", "sample:fluent"]
    assert all(figures["images"] == 160 for figures in record.results.values())
    assert record.data.name == DATA


def copied(folder, prefix=""):
    """A dataset of two of the sample's classes, for testing only, as class folders."""
    sample = open_dataset("sample:twitter")
    for item in sample.test:
        name = sample.classes[item.label]
        if name in ("bird", "fruit"):
            (folder / "test" / (prefix + name)).mkdir(parents=True, exist_ok=True)
            file = sample.file(item)
            (folder / "test" / (prefix + name) / file.name).write_bytes(file.read_bytes())
    return str(folder)


def test_cross_dataset_uses_the_targets_own_names(bank, tmp_path):
    target = copied(tmp_path / "own", prefix="a ")
    record, arrays = run(bank, task="cross-dataset", dataset=DATA, method="coop", targets=(target,))
    assert list(record.results) == [DATA, target]
    assert set(arrays[f"{target}/label"]) == {0, 1} and arrays[f"{target}/predicted"].max() <= 1
    with pytest.raises(InputError, match=f"has a class 'a bird' that {DATA} lacks"):
        run(bank, task="domain-shift", dataset=DATA, targets=(target,))


def test_a_method_that_trains_for_names_has_those_that_are_only_tested(bank, tmp_path):
    target = copied(tmp_path / "own", prefix="a ")
    settings = ("epochs=1", "synth_epochs=1")
    asked = {"dataset": DATA, "method": "ship", "overrides": settings}
    told = [
        run(bank, task="cross-dataset", targets=(target,), **asked)[0].train,
        run(bank, task="base-to-new", **asked)[0].train,
        run(bank, task="domain-shift", targets=("sample:twitter",), **asked)[0].train,
    ]
    assert ["synthetic" in terms for terms in told] == [True, True, False]


def test_a_domain_may_have_some_of_the_classes(bank, tmp_path):
    target = copied(tmp_path / "some")
    arrays = run(bank, task="domain-shift", dataset=DATA, method="zeroshot", overrides=(), targets=(target,))[
        1
    ]
    assert arrays[f"{target}/predicted"].max() <= 1


def items_read(bank, monkeypatch):
    """The items of every call to encode from now on."""
    read, encode = [], bank.encode

    def noting(root, items, *args, **kwargs):
        read.extend(items)
        return encode(root, items, *args, **kwargs)

    monkeypatch.setattr(bank, "encode", noting)
    return read


@pytest.mark.parametrize(
    "values",
    [{"task": "few-shot"}, {"task": "base-to-new"}, {"task": "domain-shift", "targets": ("sample:twitter",)}],
)
def test_on_val_the_whole_of_it_is_tested_and_no_test_image_is_read(bank, monkeypatch, values):
    read = items_read(bank, monkeypatch)
    record, _ = run(bank, dataset=DATA, method="coop", split="val", **values)
    tests = {"joint" if values["task"] == "base-to-new" else DATA: DATA}
    tests |= {name: name for name in values.get("targets", ())}
    for test, name in tests.items():
        whole = open_dataset(name)
        assert record.results[test]["images"] == len(whole.val) > 0
        assert not set(read) & set(whole.test)


def test_data_without_validation_images_cannot_be_tested_on_them(bank, tmp_path):
    target = copied(tmp_path / "own")
    with pytest.raises(InputError, match="own has no validation images: test it on its test split"):
        run(bank, task="cross-dataset", dataset=DATA, targets=(target,), split="val")


def test_a_method_that_chooses_has_the_whole_validation_split_and_is_not_tested_on_it(bank, monkeypatch):
    values = {"dataset": DATA, "method": "tip-adapter", "overrides": ("search_alpha=30",)}
    seen = []
    monkeypatch.setattr(TipAdapter, "choose", lambda method, images, labels: seen.append(len(labels)))
    run(bank, task="few-shot", **values)
    assert seen == [len(open_dataset(DATA).val)]
    run(bank, task="base-to-new", **values)
    assert 0 < seen[1] < seen[0]
    with pytest.raises(InputError, match="it cannot be tested on them"):
        run(bank, task="few-shot", split="val", **values)


def test_a_worker_gets_a_method_by_its_name():
    run = prepare_run(RunConfig(task="few-shot", dataset=DATA, method="nearest-mean", shots=1))
    assert b"nearest_mean" not in pickle.dumps(run)  # the module, which a plugin's has yet to be loaded
    assert pickle.loads(pickle.dumps(run)).settings == run.settings


def test_transfer_without_targets_is_an_error(bank):
    with pytest.raises(InputError, match="cross-dataset: name the targets"):
        run(bank, task="cross-dataset", dataset=DATA)


def test_a_runs_name_depends_on_all_that_changes_its_result(lite, tiny_vit):
    first = RunConfig(task="few-shot", dataset=DATA, shots=1)
    others = [
        replace(first, seed=2),
        replace(first, shots=2),
        replace(first, method="coop"),
        replace(first, overrides=("epochs=3",)),
        replace(first, views="fresh"),
        replace(first, samples=5),
        replace(first, split="val"),
        replace(first, precision="bfloat16"),
        replace(first, dataset="sample:twitter"),
    ]
    names = {prepare_run(config).id(lite.fingerprint) for config in (first, *others)} | {
        prepare_run(first).id(tiny_vit.fingerprint)
    }
    assert len(names) == len(others) + 2
    assert prepare_run(first).id(lite.fingerprint) in names
