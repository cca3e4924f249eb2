"""One rank that goes on with tensors of other shapes than are stored. Waits for a file to end.

    other_shape_trainer.py FILE
"""

import os
import sys
import time

import numpy as np

import unreft
from cli_trainer import say


def main():
    arrays = {"matrix": np.zeros((3, 5)), "vector": np.zeros(7)}
    with unreft.Client(any_world=True) as client:
        client.restore_begin()
        client.restore_end()
        client.register([unreft.Tensor.of_array(name, array) for name, array in arrays.items()])
        say(registered=True)
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.05)


if __name__ == "__main__":
    main()
