"""Runs the passes of an evaluation, and runs the library's loop on known predictions."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Any

import torch
import transformers
from accelerate.data_loader import DataLoaderShard
from accelerate.utils import send_to_device
from torch.utils.data import DataLoader

from ...integration.loaders import batches_of, is_sequential, iterates_as
from ...integration.random_numbers import kept_random_numbers
from ...seeding import mixed, seed_all
from ..predictions import Predictions
from .libraries import replaced


class BatchPasses:
    """The passes over batches of a sequential loader. ``options``: the further arguments of
    ``Trainer.prediction_step``."""

    def __init__(self, trainer: Any, dataloader: Any, *options: Any):
        self._trainer, self._dataloader, self._options = trainer, dataloader, options
        self.batches, self.num_samples = list(dataloader.batch_sampler), len(dataloader.dataset)
        # ``replayed`` replaces these attributes of the Trainer, so the originals are kept here.
        self._step, self._preprocess = trainer.prediction_step, trainer.preprocess_logits_for_metrics
        self._on_step = trainer.callback_handler.on_prediction_step
        # Batches that were reported to the callbacks.
        self._noted: set[int] = set()

    def outcomes(self, indices: Sequence[int], num_passes: int = 0) -> Generator[tuple[int | None, Any], None, None]:
        """Yields each batch's index with its loss, logits and labels. Processes that share a model
        must make equally many passes: a pass beyond ``indices``, up to ``num_passes``, has the
        index None."""
        spare = [0] * (num_passes - len(indices))
        args = self._trainer.args
        # The random numbers of a batch depend on no other one, and so not on the part of this rank.
        with closing(batches_of(self._dataloader, [self.batches[index] for index in (*indices, *spare)], args.seed)) as loaded:
            for index in [*indices, *(None for _ in spare)]:
                with kept_random_numbers(args.device):
                    inputs = next(loaded)
                    seed_all(mixed(args.seed, index or 0))
                    outcome = self._outcome(inputs)
                if index is not None:
                    self._note(index)
                yield index, outcome

    def _outcome(self, inputs: Any) -> Any:
        """The loss, logits and labels of a batch."""
        if isinstance(self._dataloader, DataLoaderShard) and self._dataloader.device is not None:
            inputs = send_to_device(inputs, self._dataloader.device)
        loss, logits, labels = self._step(self._trainer.model, inputs, *self._options)
        if logits is not None and self._preprocess is not None:
            logits = self._preprocess(logits, labels)
        return loss, logits, labels

    def _note(self, index: int) -> None:
        """Reports a batch to the callbacks, once."""
        if index in self._noted:
            return
        self._noted.add(index)
        trainer = self._trainer
        trainer.callback_handler.eval_dataloader = self._dataloader
        trainer.control = self._on_step(trainer.args, trainer.state, trainer.control)

    @contextlib.contextmanager
    def replayed(self, known: Predictions) -> Iterator[Any]:
        """Within this context the library's loop takes ``known`` predictions, and makes only the
        passes of the others. Yields the loader for that loop."""
        trainer = self._trainer
        # The library converts predictions to arrays on the CPU, unless it computes metrics for each
        # batch.
        device = trainer.args.device if trainer.args.batch_eval_metrics else torch.device("cpu")
        missing, numbers = set(known.missing()), iter(range(len(self.batches)))
        with closing(self.outcomes(sorted(missing))) as rest:

            def outcome(*_: Any, **__: Any) -> Any:
                index = next(numbers)
                found = next(rest)[1] if index in missing else known.take(index)
                self._note(index)
                return send_to_device(found, device)

            handler = trainer.callback_handler
            with (
                replaced(trainer, prediction_step=outcome, preprocess_logits_for_metrics=None),
                replaced(handler, on_prediction_step=lambda args, state, control: control),
            ):
                yield self._positions()
            handler.eval_dataloader = self._dataloader

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Within :meth:`replayed`, lets the Trainer make passes."""
        with (
            replaced(self._trainer, prediction_step=self._step, preprocess_logits_for_metrics=self._preprocess),
            replaced(self._trainer.callback_handler, on_prediction_step=self._on_step),
        ):
            yield

    def _positions(self) -> Any:
        """A loader whose batches have the same sizes, with positions as samples: the library reads
        only sizes."""
        places: Any = range(len(self._dataloader.dataset))
        sampler = self._dataloader.batch_sampler
        positions: Any = DataLoader(
            places, batch_size=sampler.batch_size, sampler=sampler.sampler, drop_last=sampler.drop_last
        )
        if not isinstance(self._dataloader, DataLoaderShard):
            return positions
        return self._trainer.accelerator.prepare_data_loader(positions, device_placement=False)


def can_divide(loop: Any, dataloader: Any) -> bool:
    """Whether the ranks can divide the batches of a loop: it is the library's own, and all ranks
    know the batches in advance. ``loop``: the bound method."""
    is_replaced = getattr(loop, "__func__", None) is not transformers.Trainer.evaluation_loop
    return not is_replaced and is_sequential(dataloader) and iterates_as(dataloader, DataLoader, DataLoaderShard)


def can_replay(trainer: Any, dataloader: Any) -> bool:
    """Whether the library's loop gives the same result with known predictions: it reads nothing
    else of a batch."""
    reads_inputs = "inputs" in trainer.args.include_for_metrics
    return not reads_inputs and type(dataloader) in (DataLoader, DataLoaderShard)
