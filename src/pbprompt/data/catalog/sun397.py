"""SUN397: 397 scenes; `a/airplane_cabin/indoor` reads "indoor airplane cabin"."""

from pbprompt.data.catalog.benchmark import SPLIT_FILES, Benchmark, from_split


def reversed_path(name: str) -> str:
    """Path parts reversed and joined, without the initial letter's folder."""
    parts = name.strip("/").split("/")
    return " ".join(reversed(parts[1:] if len(parts[0]) == 1 and parts[1:] else parts))


BENCHMARK = Benchmark(
    name="sun397",
    title="SUN397",
    folder="sun397",
    marker="split_zhou_SUN397.json",
    classes=397,
    counts=(15_880, 3_970, 19_850),
    licence="research; the images' rights stay with their owners",
    source=f"https://vision.princeton.edu/projects/2010/SUN/, the split file from {SPLIT_FILES}",
    read=from_split("split_zhou_SUN397.json", "SUN397", reversed_path),
)
