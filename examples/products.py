"""Products whose names are codes: what they are is said in sentences.

On the command line: `pbprompt fit shelf/ --descriptions classes.yaml --out model/`.
"""

from pbprompt import PromptClassifier, open_dataset

DESCRIPTIONS = {
    "SKU-1": ["a piece of fruit", "an apple, a pear or a banana"],
    "SKU-2": "a musical instrument",
    "SKU-3": "a clock that shows the time",
}
CODES = {"fruit": "SKU-1", "musical instrument": "SKU-2", "clock": "SKU-3"}


def main() -> tuple[float, float]:
    sample = open_dataset("sample")
    wanted = [item for item in sample.items if sample.classes[item.label] in CODES]
    files = [sample.file(item) for item in wanted]
    labels = [CODES[sample.classes[item.label]] for item in wanted]
    one_each = [labels.index(code) for code in DESCRIPTIONS]  # a single photograph of each
    others = [place for place in range(len(files)) if place not in one_each][::2]
    scores = []
    for settings in ({}, {"descriptions": DESCRIPTIONS}):
        classifier = PromptClassifier(settings=settings)
        classifier.fit([files[at] for at in one_each], [labels[at] for at in one_each])
        scores.append(classifier.score([files[at] for at in others], [labels[at] for at in others]))
    print(f"from one photograph each: codes {scores[0]:.1%}, codes with descriptions {scores[1]:.1%}")
    return scores[0], scores[1]


if __name__ == "__main__":
    main()
