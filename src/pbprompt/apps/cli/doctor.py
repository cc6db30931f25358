"""`pbprompt doctor`: is everything here that is needed?"""

import platform
from importlib.util import find_spec

import typer
from rich.text import Text

from pbprompt.apps.cli.output import print_table
from pbprompt.errors import install_command

# extra -> the module that shows it is installed
EXTRAS = {
    "serve": "fastapi",
    "onnx": "onnxruntime",
    "plots": "matplotlib",
    "ray": "ray",
    "slurm": "submitit",
    "hf": "datasets",
    "siglip": "tokenizers",
    "timm": "timm",
    "track": "tensorboard",
    "parquet": "pyarrow",
    "dev": "pytest",
}


def doctor() -> None:
    """Check the installation: Python, torch, devices, embedded models, cache folder, backbones, extras.

    The exit code is 1 when something needed is broken. An extra that is absent breaks nothing.
    """
    ok, broken, absent = Text("ok", "green"), Text("broken", "red"), Text("–", "dim")
    system = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    needed = [(True, "Python", system), *_torch(), *_embedded_models(), *_cache()]
    rows = [(ok if good else broken, what, found) for good, what, found in needed]
    for extra, module in EXTRAS.items():
        here = find_spec(module) is not None
        found = "present" if here else f"absent; {install_command(extra)}"
        rows.append((ok if here else absent, f"extra {extra}", found))
    rows += [(ok if ready else absent, f"backbones {family}", found) for ready, family, found in _families()]
    print_table(("", "what", "found"), rows)
    if not all(good for good, *_ in needed):
        raise typer.Exit(1)


Row = tuple[bool, str, str]


def _torch() -> list[Row]:
    try:
        import torch
    except Exception as error:  # it fails in many ways, each for the user to read
        return [
            (False, "torch", f"cannot be imported ({error}); reinstall: pip install -c constraints.txt torch")
        ]
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU only"
    return [
        (True, "torch", torch.__version__),
        (True, "device", device),
        (True, "threads", str(torch.get_num_threads())),
    ]


def _embedded_models() -> list[Row]:
    try:
        from pbprompt.vision.towers.lite import read_embedded
        from pbprompt.vision.towers.loading.hub import EMBEDDED

        for name in EMBEDDED:
            read_embedded(name)
    except Exception as error:  # torch missing, files missing or damaged: the message says which
        return [(False, "embedded models", str(error))]
    return [(True, "embedded models", f"{', '.join(EMBEDDED)}, checksums good")]


def _families() -> list[Row]:
    """Which families of models can be loaded; the extra that one lacks has a row of its own."""
    try:
        from pbprompt.vision.towers.loading.hub import families
    except Exception:  # torch cannot be imported, which has a row of its own
        return []
    return [
        (not family.missing, family.name, f"needs the extra {family.missing}" if family.missing else "ready")
        for family in families()
    ]


def _cache() -> list[Row]:
    from pbprompt.files import cache_folder

    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".doctor"
        probe.touch()
        probe.unlink()
    except OSError as error:
        return [(False, "cache folder", f"{folder}: {error}; set PBPROMPT_CACHE to a folder you can write")]
    return [(True, "cache folder", str(folder))]
