"""One rank of the training with roundhouse. Arguments: the model, and the port of the benchmark."""
import sys

from loops import train_elastic
from models import prepared

NAME, PORT = sys.argv[1], int(sys.argv[2])

train_elastic(*prepared(NAME), PORT)
