"""The model card that is saved with every model."""

from pbprompt.train.model_folder import ModelInfo


def model_card(info: ModelInfo, folder: str) -> str:
    """Markdown: what it is, how good it was on what, how to use it, what it rests on."""
    names = ", ".join(info.classes[:20]) + (", …" if len(info.classes) > 20 else "")
    settings = "\n".join(f"- `{key}`: {value!r}" for key, value in info.config.items())
    data = "\n".join(f"- {key.replace('_', ' ')}: {value}" for key, value in info.data.items())
    return f"""# {info.method} on {info.data.get("dataset", "own data")}

{len(info.classes)} classes: {names}

Tuned with pbprompt {info.library} on the frozen backbone `{info.backbone["name"]}`
(activation {info.backbone["activation"]}, fingerprint `{info.backbone["fingerprint"]}`), seed {info.seed}.
{_figures(info)}
## Use

```sh
pbprompt predict IMAGE --model {folder}
pbprompt predict IMAGE --model {folder} --classes "a new class,another"
pbprompt evaluate {folder} DATA --split test
```

## Data

{data}

## Settings

{settings}
"""


def _figures(info: ModelInfo) -> str:
    if "accuracy" not in info.metrics:
        return ""
    rows = [("tuned", info.metrics), ("zero-shot, same backbone", info.metrics["zero_shot"])]
    lines = [f"| {name} | {v['accuracy']:.2%} | {v['nll']:.3f} | {v['ece']:.2%} |" for name, v in rows]
    split, count = info.metrics.get("split", "test"), info.metrics.get("images", 0)
    lite = info.backbone["name"] == "lite"
    note = " `lite` is not CLIP: not comparable with papers on CLIP." if lite else ""
    table = "\n".join(["| | accuracy | NLL | ECE |", "|---|---|---|---|", *lines])
    return f"\n{table}\n\nOn the {split} split, {count} images.{note}\n"
