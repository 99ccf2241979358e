"""One process of a replica that shares the model by FSDP2, with roundhouse. Arguments: the model,
and the port of the benchmark."""
import sys

from loops import shard, train_elastic
from models import prepared

import roundhouse as rh

NAME, PORT = sys.argv[1], int(sys.argv[2])

model, dataset, batch = prepared(NAME)
shard(model, rh.replica_mesh())
train_elastic(model, dataset, batch, PORT)
