"""The distributions that this package needs, as they are installed here: for the licences and the SBOM."""

from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PACKAGE = "pbprompt"


def said(of: Distribution, field: str) -> str:
    """A field of its metadata; empty where it has none."""
    return of.metadata[field] if field in of.metadata else ""  # noqa: SIM401 - its type has no `get`


def needed(extras: frozenset[str] = frozenset()) -> dict[str, Distribution]:
    """Name -> distribution of all that the package needs with these extras, directly or not; sorted."""
    found: dict[str, Distribution] = {}
    waiting = [(PACKAGE, extras)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # an extra that is not installed
            continue
        waiting += requirements(found[name], wanted)
    del found[PACKAGE]
    return dict(sorted(found.items()))


def requirements(of: Distribution, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """(name, its extras) of what a distribution itself asks for on this machine."""
    for text in of.requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""}):
            yield canonicalize_name(requirement.name), frozenset(requirement.extras)
