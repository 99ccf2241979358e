"""Lightning, elastic: strategies for ``lightning.Trainer`` and ``lightning.Fabric``.

.. code-block:: python

    import roundhouse.lightning

    trainer = L.Trainer(max_epochs=10, strategy=roundhouse.lightning.Elastic(global_batch_size=256))
    trainer.fit(module, loader)

Workers of a TrainingJob may die, leave and join while ``fit`` runs. It needs the extra of the
package: ``pip install 'roundhouse[lightning]'``. ``import roundhouse`` does not import this
module.
"""

from .internals import check_library

check_library()

from .fabric import ElasticFabric  # noqa: E402
from .strategy import Elastic  # noqa: E402

__all__ = ["Elastic", "ElasticFabric"]
