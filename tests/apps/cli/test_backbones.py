"""`pbprompt backbones`: the list, and the check of one."""

import huggingface_hub
import pytest
from siglip_folder import siglip_model, write_siglip

from pbprompt.vision.towers.loading.hub import families, in_cache


def test_lists_every_family_and_what_is_here(run, monkeypatch):
    here = {"google/siglip2-base-patch16-224"}
    monkeypatch.setattr(
        huggingface_hub, "try_to_load_from_cache", lambda repo, file: "/there" if repo in here else None
    )
    code, out, _ = run("backbones")
    assert code == 0
    for family in families():
        assert family.name in out and all(name in out for name in family.ids) and family.licence in out
    (found,) = [line for line in out.splitlines() if "siglip2-base-patch16-224" in line]
    (other,) = [line for line in out.splitlines() if "siglip2-base-patch16-384" in line]
    assert "(here)" in found and "(here)" not in other


def test_an_absent_extra_is_named(run, monkeypatch):
    monkeypatch.setattr("pbprompt.vision.towers.loading.hub.find_spec", lambda module: None)
    code, out, _ = run("backbones")
    assert code == 0 and "SigLIP needs an extra: pip install" in out and "[siglip]" in out
    _, said, _ = run("doctor")
    assert "needs the extra siglip" in said


def test_doctor_says_which_families_are_ready(run):
    code, out, _ = run("doctor")
    assert code == 0 and "backbones SigLIP" in out and "extra siglip" in out


@pytest.mark.parametrize("name", ["a file: longclip-B.pt", "nobody/nothing", "ViT-B/16"])
def test_what_is_nowhere_is_not_here(name, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda repo, file: None)
    assert not in_cache(name)
    assert in_cache("lite") and in_cache("lite-vit")


def test_checks_a_siglip(run, tmp_path):
    folder = write_siglip(tmp_path / "siglip", siglip_model())
    code, out, err = run("backbones", "check", folder)
    assert code == 0, err
    assert "32 × 32, squash, bilinear" in out and "4 × 4 patches" in out and "64 positions" in out
    assert "logit scale" in out and "7.389" in out and "zero-shot on sample" in out and "% of" in out


def test_a_wrong_one_is_one_sentence(run, tmp_path):
    code, out, err = run("backbones", "check", tmp_path)
    assert code == 2 and "holds no weights that can be loaded" in err and err.count("\n") == 1 and not out
