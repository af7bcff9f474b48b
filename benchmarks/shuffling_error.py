"""The shuffling error of partial shuffling, exactly, on few samples.

    python benchmarks/shuffling_error.py [--record]

Nine samples in three partitions, which are 1,680 assignments: eps is the total
variation distance between the law of the order of an epoch's reads and that of a
random order. A minute.
"""

import argparse

from record import add_record_option, row, write_result

from jaxdist.input.local_shuffle.shuffle import PartialShuffle
from jaxdist.input.local_shuffle.shuffling_error import shuffling_errors

EPOCHS = (0, 1, 2, 4, 8)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_record_option(parser)
    args = parser.parse_args()
    made = []
    for sent, share in enumerate(("0", "1/3", "2/3", "1")):
        shuffle = PartialShuffle(samples=9, partitions=3, exchange_count=sent)
        found = shuffling_errors(shuffle, EPOCHS[-1])
        for epoch in EPOCHS:
            figure = f"eps before epoch {epoch + 1}"
            made.append(row(f"Q = {share}", found[epoch], "", figure=figure))
    for one in made:
        print(one)
    if args.record:
        write_result("shuffling_error", made)


if __name__ == "__main__":
    main()
