"""Nearest vocabulary words, against a search by hand; and which tokens count as words."""

import numpy as np
import torch

from pbprompt.clip.tokenizer import Tokenizer
from pbprompt.explain.words import nearest_words, vocabulary_words
from pbprompt.methods.base import build_method, make_config
from pbprompt.registry import find_method


def test_a_search_by_hand(tiny_vit):
    vectors = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    found = nearest_words(tiny_vit, vectors, top_k=4)
    words = vocabulary_words(tiny_vit.tokenizer)
    table = tiny_vit.textual.token_embedding.weight.double().numpy()
    for vector, own in zip(vectors.double().numpy(), found, strict=True):
        cosines = {
            token: vector @ table[token] / np.linalg.norm(vector) / np.linalg.norm(table[token])
            for token in words
        }
        best = sorted(cosines, key=lambda token: -cosines[token])[:4]
        assert [word for word, _ in own] == [words[token] for token in best]
        np.testing.assert_allclose([c for _, c in own], [cosines[token] for token in best], atol=1e-5)


def test_prompts_that_start_at_words_are_those_words(tiny_vit):
    for name, latent in (("pbprompt", 1), ("coop", 0)):
        kind = find_method(name)
        config = make_config(kind, overrides=["words=a photo of a"])
        method = build_method(kind, config, tiny_vit, seed=1)
        method.prepare(("cat", "dog"), "")
        vectors = method.prompt_vectors(3, torch.Generator().manual_seed(0)).detach()
        assert vectors.shape == ((3, 2, 5, 64) if latent else (1, 1, 4, 64))
        found = nearest_words(tiny_vit, vectors[-1, -1], top_k=1)
        assert [own[0][0] for own in found][latent:] == ["a", "photo", "of", "a"]


def test_only_readable_tokens_are_words():
    words = vocabulary_words(Tokenizer())
    assert {"cat", "photo", "café", "7", "a"} <= set(words.values())
    assert all(
        word and word.isalnum() and word == word.lower() and "\ufffd" not in word for word in words.values()
    )
    tokenizer = Tokenizer()
    assert tokenizer.sos not in words and tokenizer.eot not in words and tokenizer.encode(".")[0] not in words
    for token in list(words)[::997]:
        assert tokenizer.decode([token]) == words[token] + " "
    assert tokenizer.encode("cat") == [token for token, word in words.items() if word == "cat"]
