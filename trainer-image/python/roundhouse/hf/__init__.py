"""Hugging Face's ``transformers.Trainer``, elastic.

.. code-block:: python

    from roundhouse.hf import Trainer

    trainer = Trainer(model=model, args=args, train_dataset=dataset, global_batch_size=64)
    trainer.train()

Workers of a TrainingJob may die, leave and join while ``train`` runs. Import it, or ``roundhouse``,
before ``TrainingArguments`` are made. It needs the extra of the package:
``pip install 'roundhouse[hf]'``. ``import roundhouse`` does not import this module.
"""

from .internals.accelerator import Accelerator
from .internals.trainer import Elastic, Trainer

__all__ = ["Accelerator", "Elastic", "Trainer"]
