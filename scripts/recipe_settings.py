"""Write the last table of docs/reproduce.md: each row of each recipe beside what its figure was made with.

    python scripts/recipe_settings.py

`made_with` holds what the paper and the authors' own code say; the rest is computed from the recipes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pbprompt.config import to_dict
from pbprompt.files import write_text
from pbprompt.learners.method import MethodConfig, make_config
from pbprompt.markdown import table
from pbprompt.registry import find_method
from pbprompt.research.recipes import MethodRow, Recipe, load_recipe, recipe_names
from pbprompt.research.report.published import published

PAGE = Path(__file__).parents[1] / "docs" / "reproduce.md"
HEADING = "## Every row, and how it differs from what is published\n"

# VPT's authors chose these by dataset: draws per step, epochs.
VPT = {
    "imagenet": (10, 10), "caltech101": (20, 20), "oxford_pets": (40, 20), "stanford_cars": (20, 40),
    "flowers102": (10, 40), "food101": (20, 20), "fgvc_aircraft": (10, 10), "sun397": (20, 10),
    "dtd": (40, 10), "eurosat": (20, 60), "ucf101": (5, 20),
}  # fmt: skip
Settings = dict[str, Any]
OWN_RUN = "the paper's own run"
# What the paper prints of PBPrompt, written down here and not taken from a preset of ours.
PRINTED: Settings = {
    # table of hyperparameters
    "optimiser": "sgd", "learning_rate": 0.002, "warmup_epochs": 1, "batch_size": 1, "tokens": 4, "words": "",
    "weight_decay": 5e-4,  # as Zhou et al., whose settings it says it has
    # section 3.1: N(0, 0.02), η, 20 samples are of prediction; Algorithm 1 draws C prompts, one a class
    "words_std": 0.02, "ct_weight": 0.01, "train_samples": 1,
    # Eq. 3 and 4: [r̂, v_1 … v_b] from bare self-attention, then the one vector e_c
    "keep_latent": True, "layer": "attention", "residual": False, "name_tokens": "mean", "ending": "stop",
    "label_embedding": "tokens", "prompts": "generated",
    # Eq. 6 to 8: both directions added, exponents u·g without a temperature
    "transport": "ct", "ct_sum": True, "ct_plan": "product", "ct_temperature": 1.0, "ct_gradient": True,
    # Eq. 9, and the contextual prior N(e_c, I); μ and Σ two fully connected layers
    "kl_weight": 1.0, "kl_reduction": "elbo", "prior_std": 1.0, "std_unit": "one",
    "likelihood": "mean_of_logs", "mean_residual": False, "initial_std": 0.0, "sampling": True,
    "reading": "probabilities",
    "prediction_temperature": 1.0, "antithetic": False, "text_products": "exact",
}  # fmt: skip
VARIANTS: dict[str, Settings] = {
    "": {},
    "b-prompt": {"ct_weight": 0.0},
    "p-prompt": {"prompts": "free"},
    "without-sampling": {"sampling": False},
    "ot": {"transport": "ot"},
}


UNPRINTED = {  # rows without a figure of the paper: what they follow
    "CLIP-Adapter": (
        "its paper and code; α 0.2 as in the code, searched for each dataset in the paper; Adam, for want "
        "of a word on the optimiser"
    ),
    "GDA + text": (
        "its paper; α is 1, which its authors' log finds most often, theirs is searched on validation "
        "images; one view of an image, theirs ten"
    ),
    "CLIP, 80 templates": "those of CLIP's authors for ImageNet, on all datasets",
}


def printed(recipe: Recipe, row: MethodRow) -> bool:
    """Whether a figure of the paper stands beside the row."""
    name = row.published or row.label
    return any(figure.method == name for table in recipe.published for figure in published(table))


def made_with(recipe: Recipe, row: MethodRow, dataset: str) -> tuple[str, str, Settings, str]:
    """(whose settings, preset, changes to it, what no setting says) of the figure beside a row."""
    few, rn50 = recipe.task == "few-shot", recipe.backbone == "RN50"
    transfer = recipe.task in ("cross-dataset", "domain-shift")
    large = dataset == "imagenet"
    match row.method:
        case "pbprompt":
            epochs = 0 if few else 60 if "trade_off_50_more_epochs" in recipe.published else 10
            extra: Settings = {**PRINTED, **VARIANTS[row.variant], "epochs": epochs}
            name = row.published or row.label
            if "lambda=" in name:
                extra |= {"ct_sum": False, "ct_balance": float(name.split("=")[1].rstrip(")"))}
            said = "epochs are not stated" if transfer else ""
            if rn50 and recipe.task == "base-to-new":
                said = "16 shots as in the caption; the text says 4 (recipe `base-to-new-rn50-4-shots`)"
            return OWN_RUN, "default", extra, said if recipe.shots == (16,) else ""
        case "coop" if few and not rn50:
            return OWN_RUN, "default", {"batch_size": 1}, ""
        case "coop" if few or rn50:
            return "PLOT's code", "published", {"epochs": 50} if large else {}, ""
        case "coop":
            own: Settings = {"epochs": 50} if large and not transfer else {}
            return "CoCoOp's paper", "transfer" if transfer else "base-to-new", own, ""
        case "cocoop" if few:
            return OWN_RUN, "default", {"epochs": 0, "words": ""}, ""
        case "cocoop" if rn50:
            return OWN_RUN, "default", {}, "its settings on RN50 are not stated; these are CoCoOp's"
        case "cocoop":
            return "CoCoOp's paper", "default", {}, ""
        case "plot" if rn50:
            return "PLOT's code", "published", {"add_global": True} if large else {}, ""
        case "plot":
            return OWN_RUN, "default", {"batch_size": 1, **({"add_global": True} if large else {})}, ""
        case "coplot":
            said = "its start is not stated; sets that start alike stay alike, so the phrases differ"
            return OWN_RUN, "default", {"add_global": True} if large else {}, said
        case "vpt":
            draws, epochs = VPT[dataset]
            said = "20 draws at prediction, theirs as many as in training"
            if transfer:
                said += "; draws and epochs are those of its base-to-new on ImageNet"
            return "VPT's paper", "default", {"train_samples": draws, "epochs": epochs}, said
        case "ship":
            said = "crops of 0.08 to 1 of an image, theirs 0.5 to 1; the last model, theirs the best on test"
            if transfer:
                said += "; one training for all targets"
            own = {"momentum": 0.0} if large and not transfer else {}  # AdamW does not look at it
            return "SHIP's code", "published-imagenet" if large else "published", own, said
        case "prograd" if few:
            return (
                OWN_RUN,
                "default",
                {},
                (
                    "4 vectors as the paper says; their start is not stated; λ is 1, "
                    "ProGrad's authors took 0.8 at 8 and 16 shots on three datasets"
                ),
            )
        case "prograd":
            return "ProGrad's code", "published", {"epochs": 50}, "the figures repeat CoCoOp's"
        case "proda":
            return "ProDA's paper", "default", {}, "no code is public; the figures are from VPT's paper"
    return "CoCoOp's paper", "default", {}, ""


def differences(recipe: Recipe, row: MethodRow) -> tuple[str, str]:
    """(whose settings, "same" or how the row's are others)."""
    if not printed(recipe, row):
        return "–", UNPRINTED.get(row.label, "no published figure")
    by_dataset: dict[str, list[str]] = {}
    said = source = ""
    for dataset in recipe.datasets:
        source, preset, changes, said = made_with(recipe, row, dataset)
        kind = find_method(row.method)
        words = [f"{key}={value}" for key, value in changes.items()]
        theirs = make_config(kind, preset, "" if row.method == "pbprompt" else row.variant, words)
        ours = make_config(kind, row.preset, row.variant, row.overrides_on(dataset))
        if row.method == "pbprompt" and row.preset == "default":
            return source, "the measured defaults, not the paper's settings ([readings](readings.md))"
        by_dataset.setdefault("; ".join(_changed(ours, theirs)), []).append(dataset)
    parts = [
        text if len(by_dataset) == 1 else f"{text} on {', '.join(datasets)}"
        for text, datasets in by_dataset.items()
        if text
    ]
    if said:
        parts.append(said)
    return source, "; ".join(parts) or "same"


def _changed(ours: MethodConfig, theirs: MethodConfig) -> Iterator[str]:
    expected = to_dict(theirs)
    for key, value in to_dict(ours).items():
        if value != expected[key]:
            yield f"`{key}` {_shown(value)}, published {_shown(expected[key])}"


def _shown(value: Any) -> str:
    return f"“{value}”" if isinstance(value, str) else str(value)


def section() -> str:
    """The heading and the table."""
    rows = [
        (name if first else "", row.label, *differences(recipe, row))
        for name in recipe_names()
        for recipe in [load_recipe(name)]
        for first, row in zip([True] + [False] * len(recipe.rows), recipe.rows, strict=False)
    ]
    lines = table(("recipe", "row", "figure of", "settings"), rows)
    about = (
        "Made by `python scripts/recipe_settings.py`, which compares the settings of every row with what the "
        "paper and the authors' code say. For all rows: what is learned is kept in float32, where the "
        "authors' code keeps it in the towers' precision. Files are listed by name, so that draws can be "
        "repeated. "
        "The paper's table has one image per step for all results: so do the literal rows.\n"
    )
    return f"{HEADING}\n{about}\n{lines}\n"


def page() -> str:
    """docs/reproduce.md with the table as it is now."""
    return PAGE.read_text(encoding="utf-8").partition(HEADING)[0] + section()


if __name__ == "__main__":
    write_text(PAGE, page())
