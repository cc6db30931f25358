"""`pbprompt doctor`: is everything here that is needed?"""

import platform
import tempfile
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


Row = tuple[bool, str, str]  # whether it is well, what, and what was found


def doctor() -> None:
    """Check the installation: Python, torch, devices, embedded models, cache folder, backbones, extras.

    The exit code is 1 when something needed is broken. An extra that is absent breaks nothing.
    """
    system = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    needed = [(True, "Python", system), *_torch(), _embedded_models(), _cache()]
    useful = []
    for extra, module in EXTRAS.items():
        here = find_spec(module) is not None
        useful.append((here, f"extra {extra}", "present" if here else f"absent; {install_command(extra)}"))
    ok, broken, absent = Text("ok", "green"), Text("broken", "red"), Text("–", "dim")
    rows = [
        (ok if good else bad, what, found)
        for bad, part in ((broken, needed), (absent, [*useful, *_families()]))
        for good, what, found in part
    ]
    print_table(("", "what", "found"), rows)
    if not all(good for good, *_ in needed):
        raise typer.Exit(1)


def _torch() -> list[Row]:
    try:
        import torch
    except Exception as error:  # it fails in many ways, each for the user to read
        how = "reinstall: pip install -c constraints.txt torch"
        return [(False, "torch", f"cannot be imported ({error}); {how}")]
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU only"
    facts = {"torch": torch.__version__, "device": device, "threads": str(torch.get_num_threads())}
    return [(True, what, found) for what, found in facts.items()]


def _embedded_models() -> Row:
    try:
        from pbprompt.vision.towers.lite import read_embedded
        from pbprompt.vision.towers.loading.hub import EMBEDDED

        for name in EMBEDDED:
            read_embedded(name)
    except Exception as error:  # torch missing, files missing or damaged: the message says which
        return (False, "embedded models", str(error))
    return (True, "embedded models", f"{', '.join(EMBEDDED)}, checksums good")


def _families() -> list[Row]:
    """Which families of models can be loaded; the extra that one lacks has a row of its own."""
    try:
        from pbprompt.vision.towers.loading.hub import families
    except Exception:  # torch cannot be imported, which has a row of its own
        return []
    ready = {one.name: f"needs the extra {one.missing}" if one.missing else "ready" for one in families()}
    return [(found == "ready", f"backbones {name}", found) for name, found in ready.items()]


def _cache() -> Row:
    from pbprompt.files import cache_folder

    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return (False, "cache folder", f"{folder}: {error}; set PBPROMPT_CACHE to a folder you can write")
    return (True, "cache folder", str(folder))
