"""Caltech101: 100 classes of objects, without BACKGROUND_Google and Faces_easy."""

from pbprompt.data.catalog.benchmark import SPLIT_FILES, Benchmark, from_split

_NAMES = {"airplanes": "airplane", "Faces": "face", "Leopards": "leopard", "Motorbikes": "motorbike"}

BENCHMARK = Benchmark(
    name="caltech101",
    title="Caltech101",
    folder="caltech-101",
    marker="split_zhou_Caltech101.json",
    classes=100,
    counts=(4_128, 1_649, 2_465),
    licence="CC BY 4.0",
    source=f"https://data.caltech.edu/records/mzrjq-6wc02, the split file from {SPLIT_FILES}",
    read=from_split(
        "split_zhou_Caltech101.json", "101_ObjectCategories", lambda name: _NAMES.get(name, name)
    ),
)
