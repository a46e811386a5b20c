#!/usr/bin/env python3
"""A shuffled data loader in the style of PyTorch's: a sampler decides on the order, the loader fetches samples.

    loader.py [--plain] [--seed N] [--epochs N] --record BYTES FILE
    loader.py [--plain] [--seed N] [--epochs N] DIRECTORY

The sampler knows the whole order before the first sample is read, so the loader declares it to Outrider (not with --plain):
records of one file by pulling from the sampler, many files through a client that is given those opened ahead. Prints a checksum over
all samples in the order of use.
"""

import argparse
import collections
import hashlib
import os
import random
import sys

AHEAD = 256  # files that are open before their turn


class RandomSampler:
    """Indices in a new random order for each epoch."""

    def __init__(self, count, seed):
        self.order = list(range(count))
        self.random = random.Random(seed)

    def __iter__(self):
        self.random.shuffle(self.order)
        return iter(list(self.order))


class Records:
    """Equal records of one file."""

    def __init__(self, path, record, declared):
        self.file = open(path, "rb", buffering=0)
        self.record = record
        self.declared = declared

    def __len__(self):
        return os.fstat(self.file.fileno()).st_size // self.record

    def samples(self, order):
        order = list(order)
        if not self.declared:
            for i in order:
                yield os.pread(self.file.fileno(), self.record, i * self.record)
            return
        with outrider.pull(self.file, ((i * self.record, self.record) for i in order)):
            for i in order:
                yield outrider.pread(self.file, self.record, i * self.record)


class Files:
    """Each file in a directory."""

    def __init__(self, path, declared):
        self.paths = sorted(e.path for e in os.scandir(path) if e.is_file(follow_symlinks=False))
        self.declared = declared

    def __len__(self):
        return len(self.paths)

    def samples(self, order):
        if not self.declared:
            for i in order:
                with open(self.paths[i], "rb", buffering=0) as file:
                    yield file.read()
            return
        opened = collections.deque()
        with outrider.Client() as client:

            def first():
                with opened.popleft() as file:
                    sample = file.read()
                    client.remove_region(file)
                    return sample

            for i in order:
                file = outrider.File(self.paths[i])
                client.add_region(file)
                client.request([(file, 0, os.fstat(file.fileno()).st_size)], client.APPEND)
                opened.append(file)
                if len(opened) == AHEAD:
                    yield first()
            while opened:
                yield first()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("--record", type=int, metavar="BYTES")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="declare nothing")
    args = parser.parse_args()
    if args.record is not None and args.record < 1:
        parser.error("--record takes bytes from 1")
    if not args.plain:
        global outrider
        # As installed, or as in the source tree.
        sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
        import outrider
    if args.record:
        data = Records(args.path, args.record, not args.plain)
    else:
        data = Files(args.path, not args.plain)
    sampler = RandomSampler(len(data), args.seed)
    digest = hashlib.blake2b(digest_size=8)
    for _ in range(args.epochs):
        for sample in data.samples(sampler):
            digest.update(sample)
    print(f"{len(data)} samples, checksum {digest.hexdigest()}")


if __name__ == "__main__":
    main()
