from pbprompt.suggest import SHOWN, nearest, suggest


def test_the_nearest_word_is_suggested_in_its_own_spelling():
    assert suggest("caltech", ["caltech101", "dtd"]) == "did you mean 'caltech101'?"
    assert nearest("vit-b/16", ["RN50", "ViT-B/16"]) == "ViT-B/16"


def test_what_is_known_is_listed_where_nothing_is_near():
    assert suggest("xyz", iter("ab")) == "known are a, b"
    assert suggest("xyz", [f"word {n}" for n in range(SHOWN + 1)]).endswith(f", word {SHOWN - 1}, …")
    assert nearest("xyz", ["a"]) is None
