"""One rank with so many tensors of three numbers each, of which it says no more than that.

    many_tensors_trainer.py NUMBER
"""

import sys

import numpy as np

import unreft


def main():
    arrays = {f"tensor{index:02}": np.zeros(3) for index in range(int(sys.argv[1]))}
    with unreft.Client(any_world=True) as client:
        client.restore_begin()
        client.restore_end()
        client.register([unreft.Tensor.of_array(name, array) for name, array in arrays.items()])


if __name__ == "__main__":
    main()
