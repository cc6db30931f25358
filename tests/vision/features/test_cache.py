"""The feature cache: values equal the tower's own, whatever path they took."""

import contextlib

import pytest
import torch
from PIL import Image

from pbprompt.errors import InputError
from pbprompt.vision.features import cache as feature_bank
from pbprompt.vision.features import encode
from pbprompt.vision.features import store as feature_store
from pbprompt.vision.features.cache import FeatureCache, Features, feature_folder
from pbprompt.vision.images import decoding
from pbprompt.vision.images.images import open_image
from pbprompt.vision.images.items import Item
from pbprompt.vision.towers.backbone import random_backbone

COUNT = 11


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "photos"
    root.mkdir()
    generator = torch.Generator().manual_seed(0)
    for place in range(COUNT):
        pixels = torch.randint(256, (40 + place, 50, 3), generator=generator, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(root / f"{place}.png")
    return root


@pytest.fixture
def items():
    return [Item(f"{place}.png", place % 3) for place in range(COUNT)]


def bank(backbone, **options):
    return FeatureCache(backbone, progress=False, **options)


def direct(backbone, images):
    """All images through the tower at once, without the bank."""
    encoded = backbone.image(torch.stack(images))
    return encoded.global_, encoded.patches


def assert_values(features, global_, patches):
    torch.testing.assert_close(features.global_, global_, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(features.patches.float(), patches, rtol=2e-3, atol=2e-3)
    assert features.global_.dtype == torch.float32 and features.patches.dtype == torch.float16


def assert_same(one, two):
    assert torch.equal(one.global_, two.global_)
    assert torch.equal(one.patches, two.patches)
    assert torch.equal(one.labels, two.labels)


@pytest.mark.parametrize("name", ["tiny_vit", "tiny_resnet"])
@pytest.mark.parametrize("batch", [None, 3, 64])
def test_values_are_the_towers_own(name, batch, folder, items, request):
    backbone = request.getfixturevalue(name)
    own = bank(backbone, batch=batch)
    features = own.encode(folder, items)
    images = [backbone.preprocess(open_image(folder / item.path)) for item in items]
    assert_values(features, *direct(backbone, images))
    assert features.labels.tolist() == [item.label for item in items]
    assert own.encoded == COUNT


def test_warm_equals_cold_bit_for_bit_in_any_order(tiny_vit, folder, items, monkeypatch):
    monkeypatch.setattr(feature_store, "SHARD_IMAGES", 4)
    cold = bank(tiny_vit, batch=2).encode(folder, items)
    assert len(list(feature_folder().glob("*/*.safetensors"))) == 3
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(1)).tolist()
    own = bank(tiny_vit)
    warm = own.encode(folder, [items[place] for place in order])
    assert_same(warm, cold.subset(order))
    assert own.encoded == 0


def test_results_take_part_in_training(tiny_vit, folder, items):
    features = bank(tiny_vit).encode(folder, items)
    weight = torch.ones(64, requires_grad=False)[: tiny_vit.embed_dim].requires_grad_()
    (features.global_ @ weight).sum().backward()
    torch.testing.assert_close(weight.grad, features.global_.sum(0))


def test_threads_are_left_as_they_were(tiny_vit, folder, items):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        bank(tiny_vit).encode(folder, items)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_more_items_encode_only_what_is_new(tiny_vit, folder, items):
    bank(tiny_vit).encode(folder, items[:5])
    own = bank(tiny_vit)
    own.encode(folder, items)
    assert own.encoded == COUNT - 5


def test_the_same_image_twice_is_encoded_once(tiny_vit, folder, items):
    (folder / "copy.png").write_bytes((folder / "0.png").read_bytes())
    own = bank(tiny_vit)
    features = own.encode(folder, [*items, Item("copy.png", 2), items[0]])
    assert own.encoded == COUNT
    for row in (COUNT, COUNT + 1):
        assert torch.equal(features.patches[row], features.patches[0])
        assert torch.equal(features.global_[row], features.global_[0])


def test_changed_content_is_encoded_again(tiny_vit, folder, items):
    old = bank(tiny_vit).encode(folder, items)
    image = open_image(folder / "3.png").transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    image.save(folder / "3.png")
    own = bank(tiny_vit)
    new = own.encode(folder, items)
    assert own.encoded == 1
    expected, _ = direct(tiny_vit, [tiny_vit.preprocess(image)])
    torch.testing.assert_close(new.global_[3:4], expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(new.global_[:3], old.global_[:3])


def test_another_backbone_precision_or_transform_is_separate(tiny_vit, folder, items):
    bank(tiny_vit).encode(folder, items)
    reseeded = random_backbone(tiny_vit.config, seed=1)
    double = random_backbone(tiny_vit.config).to(torch.float64)
    rough = random_backbone(tiny_vit.config)
    object.__setattr__(rough.preprocess, "draft", 32)
    for backbone in (reseeded, double, rough):
        own = bank(backbone)
        own.encode(folder, items)
        assert own.encoded == COUNT
    assert len(list(feature_folder().glob("*/index.jsonl"))) == 4


def test_spilled_patches_equal_those_in_memory(tiny_vit, folder, items, monkeypatch):
    plain = bank(tiny_vit).encode(folder, items)
    plain_views = bank(tiny_vit).views(folder, items, seed=1, epoch=0)
    monkeypatch.setattr(feature_bank, "MEMORY_GIB", 1e-9)
    own = bank(tiny_vit)
    spilled = own.encode(folder, items)
    fresh = own.views(folder, items, seed=1, epoch=0)
    assert_same(spilled, plain)
    assert_same(fresh, plain_views)
    assert not list(feature_folder().glob(".patches*"))


def test_views_are_the_transforms_own_and_are_not_stored(tiny_vit, folder, items):
    own = bank(tiny_vit)
    features = own.views(folder, items, seed=5, epoch=2)
    test = tiny_vit.preprocess
    view = test.view(5, 2)
    images = [test.normalised(view(open_image(folder / item.path), item.path)) for item in items]
    assert_values(features, *direct(tiny_vit, images))
    assert_same(own.views(folder, items, seed=5, epoch=2), features)
    assert own.encoded == COUNT
    assert not torch.equal(own.views(folder, items, seed=5, epoch=3).global_, features.global_)
    assert not torch.equal(own.views(folder, items, seed=6, epoch=2).global_, features.global_)
    assert not feature_folder().exists()


def test_processes_decode_what_threads_do(tiny_vit, folder, items, monkeypatch):
    own = bank(tiny_vit)
    by_threads = own.views(folder, items, seed=5, epoch=2)
    with contextlib.closing(decoding.Decoder(1, processes=True)) as decoder:
        monkeypatch.setattr(own, "_decoder", lambda images: decoder)
        assert_same(own.views(folder, items, seed=5, epoch=2), by_threads)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_fresh_views_stay_there_and_processes_decode_them(tiny_vit, folder, items, monkeypatch):
    on_gpu = random_backbone(tiny_vit.config).to("cuda")
    by_threads = bank(on_gpu, workers=1).views(folder, items, seed=5, epoch=2)
    monkeypatch.setattr(decoding, "MANY_IMAGES", COUNT)
    monkeypatch.setattr(decoding, "MANY_PROCESSORS", 1)
    monkeypatch.setattr(decoding, "available_cpus", lambda: 2)
    by_processes = bank(on_gpu).views(folder, items, seed=5, epoch=2)
    assert decoding.shared_processes.cache_info().currsize
    assert by_threads.patches.is_cuda and by_threads.labels.is_cuda
    assert_same(by_processes, by_threads)


def test_fixed_views_are_those_of_the_first_epochs_and_are_stored(tiny_vit, folder, items):
    own = bank(tiny_vit)
    fixed = own.fixed_views(folder, items, seed=5, views=3)
    assert len(fixed) == 3 * COUNT and own.encoded == 3 * COUNT
    for epoch in range(3):
        part = fixed.subset(slice(epoch * COUNT, (epoch + 1) * COUNT))
        assert_same(part, own.views(folder, items, seed=5, epoch=epoch))
    assert_same(bank(tiny_vit).fixed_views(folder, items, seed=5, views=3), fixed)
    own.fixed_views(folder, items, seed=5, views=4)
    assert own.encoded == COUNT
    own.fixed_views(folder, items, seed=6, views=1)
    assert own.encoded == COUNT


def test_a_view_belongs_to_its_item_not_only_to_its_bytes(tiny_vit, folder, items):
    (folder / "copy.png").write_bytes((folder / "0.png").read_bytes())
    fixed = bank(tiny_vit).fixed_views(folder, [items[0], Item("copy.png", 0)], seed=1, views=1)
    assert not torch.equal(fixed.global_[0], fixed.global_[1])


@pytest.mark.parametrize("call", ["encode", "views", "fixed_views"])
def test_unreadable_images_are_named_after_the_rest_is_done(tiny_vit, folder, items, call):
    (folder / "2.png").write_bytes(b"text")
    (folder / "7.png").unlink()
    options = {"encode": {}, "views": {"seed": 1, "epoch": 0}, "fixed_views": {"seed": 1, "views": 2}}[call]
    own = bank(tiny_vit)
    with pytest.raises(InputError) as caught:
        getattr(own, call)(folder, items, **options)
    message = str(caught.value)
    assert message.startswith("2 of 11 images cannot be read") and "\n" not in message
    assert "2.png" in message and "7.png" in message
    if call != "views":
        good = [item for item in items if item.path not in ("2.png", "7.png")]
        getattr(own, call)(folder, good, **options)
        assert own.encoded == 0


def test_nothing_but_unreadable_images_are_left_out_too(tiny_vit, folder, items):
    (folder / "2.png").write_bytes(b"text")
    failures = {}
    assert len(bank(tiny_vit).encode(folder, items[2:3], failures)) == 0 and list(failures) == ["2.png"]


@pytest.mark.parametrize("content", [b"", b"half"])
def test_copies_of_an_unreadable_image_are_all_unreadable(tiny_vit, folder, items, content):
    content = content and (folder / "0.png").read_bytes()[:600]
    names = [f"bad{place}.png" for place in range(20)]
    for name in names:
        (folder / name).write_bytes(content)
    failures = {}
    features = bank(tiny_vit).encode(folder, [*items, *(Item(name, 0) for name in names)], failures)
    assert sorted(failures) == sorted(names) and len(features) == COUNT
    assert all(name in str(failures[name]) for name in names)
    assert_same(features, bank(tiny_vit).encode(folder, items))


def test_a_copy_of_an_image_that_went_away_is_encoded_for_itself(tiny_vit, folder, items, monkeypatch):
    for place in range(3):
        (folder / f"copy{place}.png").write_bytes((folder / "0.png").read_bytes())
    copies = [Item(f"copy{place}.png", 0) for place in range(3)]
    hash_them = feature_bank.file_hashes

    def then_one_goes(*given):
        found = hash_them(*given)
        (folder / "copy0.png").unlink()
        return found

    monkeypatch.setattr(feature_bank, "file_hashes", then_one_goes)
    failures = {}
    features = bank(tiny_vit).encode(folder, copies, failures)
    assert list(failures) == ["copy0.png"] and len(features) == 2
    monkeypatch.undo()
    assert_same(features, bank(tiny_vit).encode(folder, [items[0], items[0]]))


@pytest.mark.parametrize("processes", [False, True])
def test_an_image_that_changes_before_it_is_decoded_is_stored_under_no_name(
    tiny_vit, folder, items, monkeypatch, processes
):
    first, hash_them = (folder / "0.png").read_bytes(), feature_bank.file_hashes

    def then_one_changes(*given):
        found = hash_them(*given)
        (folder / "0.png").write_bytes((folder / "1.png").read_bytes())
        return found

    own = bank(tiny_vit)
    with monkeypatch.context() as patch, contextlib.closing(decoding.Decoder(1, processes=True)) as decoder:
        patch.setattr(feature_bank, "file_hashes", then_one_changes)
        if processes:
            patch.setattr(own, "_decoder", lambda images: decoder)
        with pytest.raises(InputError, match=r"0\.png: it changed while it was read: try again"):
            own.encode(folder, items)
    (folder / "0.png").write_bytes(first)
    kept = bank(tiny_vit).encode(folder, items)
    assert_same(kept, bank(tiny_vit, cache=folder / "anew").encode(folder, items))


def test_a_single_unreadable_image_is_named_with_what_to_do(tiny_vit, folder, items):
    (folder / "2.png").write_bytes(b"text")
    with pytest.raises(InputError, match=r"2\.png: .*: fix or remove it$"):
        bank(tiny_vit).encode(folder, items)


def test_many_unreadable_images_are_counted(tiny_vit, folder, items):
    for place in range(8):
        (folder / f"{place}.png").write_bytes(b"text %d" % place)
    with pytest.raises(InputError, match=r"^8 of 11 images .*4\.png.*; and 3 more: ") as caught:
        bank(tiny_vit).encode(folder, items)
    assert "5.png" not in str(caught.value)


def test_ctrl_c_keeps_what_was_encoded(tiny_vit, folder, items, monkeypatch):
    calls = []

    def stops(*arguments):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(*arguments)

    original = encode._begin
    monkeypatch.setattr(encode, "_begin", stops)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    with pytest.raises(KeyboardInterrupt):
        bank(tiny_vit, batch=2).encode(folder, items)
    monkeypatch.setattr(encode, "_begin", original)
    own = bank(tiny_vit)
    own.encode(folder, items)
    assert own.encoded == COUNT - 6


def test_features_that_overflow_are_refused(tiny_vit, folder, items):
    loud = random_backbone(tiny_vit.config)
    loud.visual.proj.mul_(1e9)
    with pytest.raises(InputError, match=r"0\.png: its features overflow"):
        bank(loud).encode(folder, items)


def test_beyond_the_limit_others_features_go_and_own_ones_stay(
    tiny_vit, tiny_resnet, folder, items, monkeypatch
):
    bank(tiny_resnet).encode(folder, items)
    others = set(feature_folder().glob("*/*.safetensors"))
    feature_store.in_use.difference_update(others)  # as if another process had written them
    bank(tiny_vit).encode(folder, items[:5])
    assert others <= set(feature_folder().glob("*/*.safetensors"))
    monkeypatch.setattr(feature_store, "DEFAULT_LIMIT_GIB", 0.0)
    own = bank(tiny_vit)
    own.encode(folder, items)
    kept = set(feature_folder().glob("*/*.safetensors"))
    assert len(kept) == 2 and not kept & others
    own.encode(folder, items)
    assert own.encoded == 0


def test_no_items(tiny_vit, folder):
    features = bank(tiny_vit).encode(folder, [])
    assert len(features) == 0 and features.patches.shape == (0, 16, tiny_vit.embed_dim)


def test_subset_to_and_concatenate():
    features = Features(torch.randn(4, 2), torch.randn(4, 3, 2).half(), torch.arange(4))
    part = features.subset(torch.tensor([2, 0]))
    assert part.labels.tolist() == [2, 0] and torch.equal(part.patches[0], features.patches[2])
    assert features.subset([3]).global_.shape == (1, 2)
    joined = Features.concatenate([features.subset(slice(0, 1)), features.subset(slice(1, 4))])
    assert_same(joined.to("cpu"), features)
    assert len(joined) == 4


def test_a_cache_that_is_a_file_is_done_without(folder, items, tiny_vit, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    without = bank(tiny_vit, cache=tmp_path / "file" / "cache")
    monkeypatch.setattr(feature_bank, "MEMORY_GIB", 0)
    with pytest.warns(UserWarning, match="set PBPROMPT_CACHE; until then images are encoded each time"):
        features = without.encode(folder, items)
    assert_same(features, bank(tiny_vit).encode(folder, items))
