"""Many images without labels: which to label next, and what shows none of the known classes.

On the command line: `pbprompt next unlabelled/ --model model/`, `pbprompt predict … --none-at 0.05`.
"""

from pathlib import Path

from pbprompt import PromptClassifier, open_dataset

KNOWN = ("mammal", "bird", "bug")


def main(labelled: int = 8, more: int = 6) -> tuple[float, float]:
    sample = open_dataset("sample")
    name = {item.path: sample.classes[item.label] for item in sample.items}
    pool = [item.path for item in sample.train if name[item.path] in KNOWN]
    test = [item.path for item in sample.test if name[item.path] in KNOWN]
    strange = [item.path for item in sample.test if name[item.path] not in KNOWN][:60]

    def files(paths: list[str]) -> list[Path]:
        return [sample.root / path for path in paths]

    first = [path for kind in KNOWN for path in [p for p in pool if name[p] == kind][:labelled]]
    classifier = PromptClassifier().fit(files(first), [name[path] for path in first])
    before = classifier.score(files(test), [name[path] for path in test])
    for _ in range(2):  # a person labels what is asked for, the model learns on
        rest = [path for path in pool if path not in first]
        asked = [rest[one.row] for one in classifier.next_images(files(rest), more)]
        classifier.partial_fit(files(asked), [name[path] for path in asked])
        first += asked
    after = classifier.score(files(test), [name[path] for path in test])
    print(f"{before:.1%} of the test images, {after:.1%} after {2 * more} more labels")
    for title, paths in (("of known classes", test), ("of other things", strange)):
        marked = classifier.predict_uncertainty(files(paths), none_at=0.05).unknown
        assert marked is not None  # the default method can tell
        print(f"marked as none of these: {marked.mean():.1%} of the images {title}")
    return before, after


if __name__ == "__main__":
    main()
