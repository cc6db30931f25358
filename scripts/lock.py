"""Write the lock of this machine's kind: every package that the tests need, with its version and hash.

    .venv/bin/python scripts/lock.py            # locks/linux-x86_64-py311.txt, for example
    .venv/bin/python scripts/lock.py --name     # prints that name, and writes nothing

Left out are torch, whose build for CPUs or a GPU is each machine's own choice (constraints.txt pins its
version), and what comes with such a build: no one hash would be right everywhere.
"""

import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OWN_BUILDS = ("torch", "triton", "nvidia-", "cuda-")


def kind() -> str:
    """Of this machine: packages for another have other hashes."""
    return f"{sys.platform}-{platform.machine()}-py{sys.version_info[0]}{sys.version_info[1]}"


def lines(report: dict[str, Any]) -> list[str]:
    """Of pip's report, in the format of its requirements files."""
    found = []
    for part in report["install"]:
        name, version = part["metadata"]["name"].lower().replace("_", "-"), part["metadata"]["version"]
        hashes = part["download_info"].get("archive_info", {}).get("hashes", {})
        if name == "pbprompt" or name.startswith(OWN_BUILDS):
            continue
        found.append(f"{name}=={version} --hash=sha256:{hashes['sha256']}")
    return sorted(found)


def main() -> None:
    path = ROOT / "locks" / f"{kind()}.txt"
    if sys.argv[1:] == ["--name"]:
        print(path.relative_to(ROOT))
        return
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed",
             "--report", report, "-c", ROOT / "constraints.txt", "-e", f"{ROOT}[dev]"],
            check=True,
        )  # fmt: skip
        made = lines(json.loads(report.read_text(encoding="utf-8")))
    path.parent.mkdir(exist_ok=True)
    head = f"# Written by scripts/lock.py on {kind()}; torch is installed before it, see there.\n"
    path.write_text(head + "\n".join(made) + "\n", encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {len(made)} packages")


if __name__ == "__main__":
    main()
