"""The same job on a Ray cluster, by Ray Data: a task that goes through the source, and actors that answer.

    stream ─▶ todo, a unit a block ─▶ one actor a GPU (or processor), the model loaded once ─▶ parts ─▶ output
              (one task)              which reads the unit's images itself                          (here)

Ray Data holds back the task and the actors where the parts are not taken, and has the units of a process or a
machine that is lost done again. Machines must have the package, and see the images and the backbone's weights
under the same names; the model itself is sent to them.
"""

import logging
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pbprompt.apps.batch.job import AnswerWith, BatchJob, make_parts, streamed
from pbprompt.apps.batch.output import Done, Output, Part, remaining
from pbprompt.errors import InputError
from pbprompt.executors import RayExecutor
from pbprompt.model.decisions import Mix, Rule
from pbprompt.model.folder import Given
from pbprompt.model.manifest import opened
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.features.encode import decoder_for
from pbprompt.vision.images.decoding import Decoder
from pbprompt.vision.images.stream import Stream
from pbprompt.vision.towers.backbone import Backbone

LISTING_CPUS = 0.01  # of who goes through the source; not the actors' share, or Ray fuses both

Load = Callable[[], tuple[Backbone, AnswerWith]]


def sent(model: TunedModel, backbone: Given, device: str, rule: Rule) -> Load:
    """A model as it travels: its files, and where its backbone's weights are on every machine."""
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        files = opened(Path(folder) / "model")
    load = partial(TunedModel.load, files, backbone, device, samples=model.samples, seed=model.seed)
    return partial(_arrived, load, model.independent, model.class_mix, rule)


def _arrived(
    load: Callable[[], TunedModel], independent: bool, class_mix: Mix | None, rule: Rule
) -> tuple[Backbone, AnswerWith]:
    model = replace(load(), independent=independent, class_mix=class_mix)
    return model.backbone, partial(model.predict, rule=rule)


def on_ray(
    address: str | None, load: Load, device: str, job: BatchJob, output: Output, *, actors: int | None = None
) -> Iterator[Part]:
    """A job's parts, made on the cluster at the address, or on one that is started for it here.

    Each actor has a GPU of its own where the cluster has any and `device` is not cpu, and otherwise a
    processor; there are at most `actors` of them. Without job and output it is what `run` takes:
    `partial(on_ray, address, load, device)`.
    """
    import ray
    from ray.data import ActorPoolStrategy, DataContext, Datasource, ReadTask
    from ray.data.block import BlockMetadata

    class Units(Datasource):
        """One task, which is held back by Ray while nobody takes what it finds."""

        def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[ReadTask]:
            found = partial(_blocks, job.stream, dict(output.done), str(output.path))
            nothing_known = BlockMetadata(num_rows=None, size_bytes=None, exec_stats=None, input_files=None)
            return [ReadTask(found, nothing_known)]

        def estimate_inmemory_data_size(self) -> int | None:
            return None

    cluster = RayExecutor(address, float(device.startswith("cuda")))
    try:
        context = DataContext.get_current()
        context.target_max_block_size = 1  # a block a unit, and a block a part: nothing waits for others
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        there = ray.cluster_resources()
        gpus = 0 if device == "cpu" else int(there.get("GPU", 0))
        most = gpus or int(there.get("CPU", 1))
        source = Units()  # type: ignore[no-untyped-call]
        todo = ray.data.read_datasource(source, override_num_blocks=1, num_cpus=LISTING_CPUS, concurrency=1)
        answered = todo.map_batches(
            Actor,
            batch_size=1,
            compute=ActorPoolStrategy(min_size=1, max_size=max(1, min(most, actors or most))),
            fn_constructor_args=(load, output.suffix, job.features),
            num_cpus=1,
            num_gpus=1 if gpus else 0,
        )
        for row in answered.iter_rows():
            yield Part(**{name: row[name] for name in Part._fields})
    except Exception as error:
        raise (_own(error) or error) from None
    finally:
        cluster.close()


def _blocks(stream: Stream, done: Mapping[int, Done], name: str) -> Iterator[Any]:
    import pyarrow as pa

    for todo in remaining(stream.units(), done, name):
        yield pa.table({"todo": pa.array([pickle.dumps(todo)], pa.binary())})


class Actor:
    """Holds the model, and answers a unit at a time."""

    def __init__(self, load: Load, suffix: str, features: bool) -> None:
        backbone, self.answer_with = load()
        on_cpu = backbone.device.type == "cpu"
        decoder = Decoder(1, processes=True) if on_cpu else decoder_for(backbone)
        self.encoder = streamed(backbone, decoder)
        self.suffix, self.features = suffix, features

    def __call__(self, batch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        import numpy as np

        for row in batch["todo"]:
            todo = [pickle.loads(row)]
            for part in make_parts(self.answer_with, todo, self.encoder, self.suffix, features=self.features):
                yield {
                    name: np.array([value], dtype=object) if isinstance(value, bytes) else [value]
                    for name, value in part._asdict().items()
                }


def _own(error: BaseException | None) -> InputError | None:
    """What the user can fix, among what Ray has wrapped around it."""
    while error is not None:
        if isinstance(error, InputError):
            return InputError(str(error).splitlines()[-1].removeprefix("pbprompt.errors.InputError: "))
        error = getattr(error, "cause", None) or error.__cause__
    return None
