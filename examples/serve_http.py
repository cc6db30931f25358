"""A model behind HTTP, asked by a client: `pbprompt serve model/` and any language that can post a file.

Here the server's application is asked in this process; a real one is another process, at its address. Needs
the extra `serve`.
"""

from fastapi.testclient import TestClient

from pbprompt import PromptClassifier, open_dataset
from pbprompt.apps.serve.app import create_app


def main(shots: int = 6) -> str:
    sample = open_dataset("sample")
    few = [
        (sample.file(i), sample.classes[i.label]) for i in sample.train if sample.classes[i.label] in KINDS
    ]
    chosen = [pair for kind in KINDS for pair in [p for p in few if p[1] == kind][:shots]]
    classifier = PromptClassifier().fit(*map(list, zip(*chosen, strict=True)))
    with TestClient(create_app(classifier.model_), "http://localhost") as client:
        with chosen[0][0].open("rb") as image:
            answer = client.post("/predict", files={"images": ("one.webp", image)}, data={"coverage": "0.9"})
        said = answer.json()["predictions"][0]
        print(f"{said['label']} {said['score']:.1%}, a set of {', '.join(said['prediction_set'])}")
        return said["label"]


KINDS = ("mammal", "fruit", "clock")

if __name__ == "__main__":
    main()
