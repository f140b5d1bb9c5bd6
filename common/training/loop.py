"""The one training loop: steps, evaluation, checkpoints, signals, metrics."""

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist

from common.checkpoint import store
from common.device import Device, measured_peak
from common.layout import Layout
from common.models.flops import model_flops
from common.models.record import Record
from common.parameters import Slice, named
from common.training.config_json import to_json
from common.training.events import WINDOW, Watch
from common.training.metrics import MetricsLog, StepMetrics
from common.training.recipe import Recipe
from common.training.run_directory import RunDirectory
from common.training.saves import Saves
from common.training.signals import StopSignals
from common.training.step import StepResult, Training, build, mean_loss, train_step
from data.prepare import Prepared
from data.samples import SampleOrder, Samples, batches, held_out_batches


@dataclass(frozen=True)
class Summary:
    """How a run ended. loss: of the last step; valid_loss: over the validation sequences, nats per token, NaN where the run
    was stopped before. stopped: the signal's name, or nothing. checkpoint: the newest."""

    steps: int
    loss: float
    valid_loss: float
    tokens_per_s: float
    stopped: str
    checkpoint: str


def train(recipe: Recipe, prepared: Prepared, directory: RunDirectory, layout: Layout, device: Device,
          resume: Path | None = None, again: bool = False) -> Summary:
    """Trains one rank from the start, or from a verified checkpoint of the run, to the recipe's last step.

    again: the run has begun before, and begins anew where it has no checkpoint.
    """
    loop = Loop(recipe, prepared, directory, layout, device)
    return loop.run(restore(loop.training, resume, loop.facts) if resume else 0 if again else None)


class Loop:
    def __init__(self, recipe: Recipe, prepared: Prepared, directory: RunDirectory, layout: Layout, device: Device):
        self.recipe, self.prepared, self.directory, self.layout, self.device = recipe, prepared, directory, layout, device
        model, config = recipe.model, recipe.training
        self.samples = Samples(prepared.tokens("train"), model.sequence, model.vocab)
        self.order = SampleOrder(len(self.samples), config.seed)
        self.valid = Samples(prepared.tokens("valid"), model.sequence, model.vocab)
        self.training: Training = build(model, recipe.execution, recipe.optimizer, layout, config.seed, device.torch_device)
        self.facts = {name: f for name, _, f in self.training.gradients.parameters}

    def records(self, step: int) -> list[Record]:
        config = self.recipe.training
        made = batches(self.samples, self.order, step=step, global_batch=config.batch, micro_batch=config.micro_batch,
                       seed=config.seed, dp_rank=self.layout.index("dp"), dp_size=self.layout.size("dp"),
                       document_mask=config.document_mask)
        return [record.to(self.device.torch_device) for record in made]

    def valid_records(self) -> Iterator[Record]:
        """This rank's share of the first `evaluate_sequences` sequences of the validation split."""
        config, dp = self.recipe.training, self.layout.size("dp")
        every = held_out_batches(self.valid, micro_batch=config.micro_batch, dp_rank=self.layout.index("dp"), dp_size=dp,
                                 document_mask=config.document_mask)
        number = math.ceil(config.evaluate_sequences / (config.micro_batch * dp)) or None
        return (record.to(self.device.torch_device) for record in itertools.islice(every, number))

    def run(self, resumed: int | None = None) -> Summary:
        """Trains to the last step from the first, or from the step of the checkpoint that was loaded: 0 for a run that begins
        again because it had none."""
        recipe, config = self.recipe, self.recipe.training
        first, peak = resumed or 0, self._peak()
        flops = model_flops(recipe.model, config.batch)
        valid, stopped, last_loss = math.nan, None, math.nan
        began, step = time.perf_counter(), first
        tensorboard = self.directory.tensorboard if config.tensorboard else None
        with MetricsLog(self.directory.metrics, rank=self.layout.rank, resume_at=resumed, total_steps=config.steps,
                        tensorboard=tensorboard) as log, StopSignals() as stop:
            watch = Watch(config.patience, log.losses_before(WINDOW))
            saves = Saves(self.save, lambda at, why: log.event(at, "save failed", {"error": why}))
            while step < config.steps and stopped is None:
                start, rate = time.perf_counter(), recipe.rate.at(step)
                result = train_step(self.training, self.records(step), rate, recipe.optimizer.clip)
                seconds, last_loss = time.perf_counter() - start, result.loss
                step += 1
                log.step(self._metrics(step, result, rate, seconds, flops / seconds / peak))
                if event := watch.event(result.loss, result.skipped):
                    log.event(step, event, {"loss": result.loss, "grad_norm": result.grad_norm, **self.data_of(step - 1)})
                watch.check(step)
                stopped = stop.agreed(device=self.device.torch_device)
                last = step == config.steps
                if last or _due(step, config.evaluate_every):
                    valid, counted = mean_loss(self.training.pipeline, self.valid_records())
                    log.evaluation(step, "valid", {"loss": valid, "perplexity": math.exp(valid), "tokens": counted})
                if last or stopped is not None:
                    saves.finish(step)
                elif _due(step, config.save_every):
                    saves.begin(step)
        tokens = (step - first) * config.batch * recipe.model.sequence
        return Summary(step, last_loss, valid, tokens / (time.perf_counter() - began), stopped.name if stopped else "",
                       saves.folder)

    def data_of(self, step: int) -> dict[str, list[int]]:
        """What step `step`, counted from 0, is trained on: the first and last global position, and their samples."""
        batch = self.recipe.training.batch
        positions = range(step * batch, (step + 1) * batch)
        return {"positions": [positions[0], positions[-1]], "samples": [self.order.sample(at)[1] for at in positions]}

    def _peak(self) -> float:
        """FLOP/s of all the devices that this run uses, measured by rank 0 while the others wait; they get NaN."""
        peak = math.nan
        if self.layout.rank == 0:
            one = _peak_once(self.device, self.training.stages[0].context.dtype)
            peak = one if self.device.kind == "cpu" else one * self.layout.grid.world
        if self.layout.grid.world > 1:
            dist.barrier()
        return peak

    def _metrics(self, step: int, result: StepResult, rate: float, seconds: float, mfu: float) -> StepMetrics:
        scale = self.training.loss_scale
        return StepMetrics(step, result.loss, rate, result.grad_norm, result.tokens, result.tokens / seconds, mfu,
                           scale.scale if scale else None, result.skipped, {"step": seconds})

    def save(self, step: int) -> store.Saving:
        """Begins a checkpoint of everything that step `step` needs; it is written beside the steps that follow."""
        training = self.training
        about = {"step": step, "consumed": step * self.recipe.training.batch, "recipe": to_json(self.recipe),
                 "updates": training.optimizer.steps, "tokenizer": self.prepared.report["tokenizer"]["sha256"],
                 "loss_scale": training.loss_scale.state_dict() if training.loss_scale else None}
        return store.start_save(self.directory.checkpoints, training.optimizer.state(), self.facts, self.layout, about,
                                keep=self.recipe.training.keep)


_peak_once = cache(measured_peak)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def restore(training: Training, folder: Path, facts: dict) -> int:
    """Fills a training from a verified checkpoint folder; returns its step."""
    manifest = store.read_manifest(folder)
    store.load(folder, training.optimizer.state(), facts, training.layout)
    training.optimizer.steps = manifest["updates"]
    training.optimizer.publish()
    if training.loss_scale and manifest["loss_scale"]:
        training.loss_scale.load_state_dict(manifest["loss_scale"])
    return manifest["step"]


def load_model(stages: Sequence[torch.nn.Module], folder: Path, layout: Layout, verify: bool = True) -> dict:
    """Fills the parameters alone of this rank's stages, for evaluation; returns the manifest.

    The folder is verified first, unless that has been done.
    """
    manifest = store.verify(folder, layout) if verify else store.read_manifest(folder)
    held = [x for stage in stages for x in named(stage)]
    main = {name: torch.empty_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for name, p, _ in held}
    store.load(folder, {"parameters": {name: Slice(x.view(-1)) for name, x in main.items()}},
               {name: facts for name, _, facts in held}, layout)
    with torch.no_grad():
        for name, p, _ in held:
            p.copy_(main[name])
    return manifest
