"""Write sbom/pbprompt.cdx.json: what the wheel needs, as CycloneDX 1.6; it lies in the wheel's `sboms/`.

    python scripts/sbom.py            # in an environment with the package and what it needs

The versions are those it was tested with. Nothing of the time or the machine is in it, so that the same
environment gives the same file.
"""

import json
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

from installed import PACKAGE, needed, requirements, said
from licences import UNKNOWN, licence

from pbprompt import __version__

FILE = Path(__file__).parents[1] / "sbom" / "pbprompt.cdx.json"


def component(of: Distribution, kind: str = "library") -> dict[str, Any]:
    """A distribution as CycloneDX has it. Local labels (torch's `+cpu`) are of a build, not of a version."""
    name, version = of.metadata["Name"], of.version.partition("+")[0]
    name = name.lower().replace("_", "-")
    if name == PACKAGE:
        version = __version__
    terms = licence(of)
    named = {"expression": terms} if said(of, "License-Expression") else {"license": {"name": terms}}
    address = f"pkg:pypi/{name}@{version}"
    made = {"type": kind, "bom-ref": address, "name": name, "version": version, "purl": address}
    return made if terms == UNKNOWN else made | {"licenses": [named]}


def sbom() -> dict[str, Any]:
    """The document: the package, all that it needs without extras, and who needs whom."""
    own, others = component(distribution(PACKAGE), "application"), needed()
    parts = {name: component(one) for name, one in others.items()} | {PACKAGE: own}
    asked = {name: requirements(one, frozenset()) for name, one in others.items()}
    asked[PACKAGE] = requirements(distribution(PACKAGE), frozenset())
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": [parts[name] for name in others],
        "dependencies": [
            {
                "ref": parts[name]["bom-ref"],
                "dependsOn": sorted({parts[other]["bom-ref"] for other, _ in wanted if other in parts}),
            }
            for name, wanted in sorted(asked.items())
        ],
    }


def main() -> None:
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(sbom(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
