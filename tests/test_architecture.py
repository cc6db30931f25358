"""Four jobs can be followed: every hop of a walk is called from one before, and a walk is short."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import pbprompt

ROOT = Path(pbprompt.__file__).parent
WALKS = {  # what is opened, in order, to follow a job; each hop is a file and what of it
    "fit": [
        ("apps/cli/fit.py", "fit"),  # reads the options, and prints
        ("vision/images/sources.py", "open_dataset"),  # items of the splits
        ("vision/images/fewshot.py", "draw"),  # which of them to train on
        ("model/fitting.py", "fit_into"),  # TunedModel.fit, in a folder of its own
        ("model/learn.py", "tune"),  # builds the method and its features for every epoch
        ("vision/features/cache.py", "FeatureCache.encode"),  # frozen features, from the cache where they are
        ("learners/memory.py", "Memory.begin_on"),  # the training images, as the method sees them
        ("evidence/conjugate.py", "Conjugate.fit"),  # the default method, in closed form
        ("model/tuned.py", "TunedModel.save"),  # the folder, its card, its figures
    ],
    "predict": [
        ("apps/cli/predict.py", "predict"),  # reads the options, and prints
        ("model/tuned.py", "TunedModel.load"),  # the model folder, its towers and its calibration
        ("model/tuned.py", "TunedModel.rule"),  # when an image is unsure, and how large sets are
        ("apps/batch/job.py", "run"),  # the parts that are not yet on the disk
        ("apps/batch/job.py", "here"),  # on this machine (or on_ray), from the stream's images
        ("vision/features/encode.py", "encode_records"),  # frozen features
        ("model/tuned.py", "TunedModel.predict"),  # the answers on some images
        ("model/predictor.py", "Predictor"),  # logits under every sampled prompt
        ("learners/predictive.py", "Predictive.of_logits"),  # their mean, entropy and disagreement
        ("apps/batch/output.py", "Output.add"),  # each part, then all of them as one file
    ],
    "serve": [
        ("apps/cli/serve.py", "serve"),  # reads the options
        ("model/tuned.py", "TunedModel.load"),  # the model folder
        ("apps/serve/app.py", "create_app"),  # the endpoints
        ("apps/serve/middleware.py", "Middleware"),  # for each request, the key, the host, the size
        ("apps/serve/uploads.py", "receive"),  # the body, within its limits, as a pydantic model
        ("apps/serve/service.py", "Service.predict"),  # one request from images to answers
        ("apps/serve/images.py", "decode_image"),  # in a process that can be ended
        ("apps/serve/batching.py", "Batcher.submit"),  # beside other requests' images
        ("model/tuned.py", "TunedModel.predict"),  # after one pass of the tower
        ("apps/serve/schemas.py", "Prediction"),  # the answer
    ],
    "reproduce": [
        ("apps/cli/reproduce.py", "reproduce"),  # reads the options, and prints
        ("research/recipes.py", "load_recipe"),  # a table of the paper as runs
        ("research/sweep.py", "sweep"),  # those that the store does not have
        ("research/protocol.py", "prepare_run"),  # data, draw, settings, id
        ("executors.py", "LocalExecutor"),  # in processes (or Ray, or Slurm)
        ("research/sweep.py", "execute"),  # one run
        ("research/protocol.py", "run_task"),  # tune, then test
        ("model/tuned.py", "TunedModel.fit"),  # as for fit
        ("model/predictor.py", "predict_features"),  # what it says of each test image
        ("research/report/tables.py", "build_table"),  # records as a table, beside the published figures
    ],
}
MOST_HOPS = 10
KINDS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@cache
def tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


@cache
def defined(path: str) -> dict[str, ast.AST]:
    """Functions and classes of a module, and methods as Class.method."""
    found: dict[str, ast.AST] = {}
    for node in tree(path).body:
        if isinstance(node, KINDS):
            found[node.name] = node
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}": part for part in node.body if isinstance(part, KINDS)}
    return found


@cache
def imported(path: str) -> dict[str, tuple[str, str]]:
    """Name in a module -> (file, what of it; "" for all), for what it imports of the package."""
    found = {}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pbprompt":
            for alias in node.names:
                inner = file_of(f"{node.module}.{alias.name}")
                whole = (inner, "") if inner else (file_of(node.module), alias.name)
                found[alias.asname or alias.name] = whole
    return found


def file_of(module: str) -> str:
    place = Path(*module.split(".")[1:])
    files = (place.with_suffix(".py") if place.name else place, place / "__init__.py")
    return next((file.as_posix() for file in files if (ROOT / file).is_file()), "")


def handed_on(path: str, node: ast.AST) -> Iterator[tuple[str, str]]:
    """(file, name) of what code calls or passes on; ("", name) for a method of an object of any type."""
    of_module = imported(path) | {name: (path, name) for name in defined(path)}
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id in of_module:
            yield of_module[part.id]
        elif (
            isinstance(part, ast.Attribute)
            and isinstance(part.value, ast.Name)
            and part.value.id in of_module
        ):
            file, owner = of_module[part.value.id]
            yield file, f"{owner}.{part.attr}" if owner else part.attr
        if isinstance(part, ast.Call):
            handed = (part.func, *part.args, *(keyword.value for keyword in part.keywords))
            yield from (("", one.attr) for one in handed if isinstance(one, ast.Attribute))


@cache
def reached(path: str, name: str) -> frozenset[tuple[str, str]]:
    """What a function hands on to, by itself or by functions of its own layer, which a walk leaves out."""
    found: set[tuple[str, str]] = set()
    waiting, seen = [(path, name)], {(path, name)}
    while waiting:
        file, function = waiting.pop()
        now = set(handed_on(file, defined(file)[function]))
        by_attribute = {(file, other) for other in defined(file) if ("", other.rpartition(".")[2]) in now}
        inside = {
            (where, what) for where, what in now if layer(where) == layer(path) and what in defined(where)
        }
        found |= now
        waiting += (by_attribute | inside) - seen
        seen |= by_attribute | inside
    return frozenset(found)


def layer(path: str) -> str:
    """A folder, and those in it: `apps` and `vision` are of several."""
    return "/".join(path.split("/")[:-1][:2])


def is_called(hop: tuple[str, str], earlier: list[tuple[str, str]]) -> bool:
    wanted = {hop, ("", hop[1].rpartition(".")[2])} if "." in hop[1] else {hop}
    return any(wanted & reached(*before) for before in earlier)


@pytest.mark.parametrize("walk", WALKS)
def test_each_hop_of_a_walk_is_called_from_one_before(walk):
    hops = WALKS[walk]
    assert 1 < len(hops) <= MOST_HOPS
    assert not [hop for hop in hops if hop[1] not in defined(hop[0])], "not there"
    lost = [hop for at, hop in enumerate(hops) if at and not is_called(hop, hops[:at])]
    assert not lost, "called from no hop before"


def test_a_hop_that_nothing_calls_is_found():
    fit = ("apps/cli/fit.py", "fit")
    assert is_called(("model/fitting.py", "fit_into"), [fit])
    assert not is_called(("prompts/loop/loop.py", "train"), [fit])  # that is two hops on
    assert not is_called(("apps/cli/predict.py", "predict"), [fit])
