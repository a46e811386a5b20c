"""Loads small files and records of one file through PyTorch's DataLoader, as it is and prefetching, in DIR; says `well, PyTorch VERSION` if
both give the same batches in the same order, what was cold was fetched ahead, and nothing stays open. With --ranks two processes of
torch.distributed each load their shard.

    torch_loader.py DIR
    torch_loader.py --ranks DIR
"""

import ctypes
import itertools
import mmap
import os
import pickle
import random
import resource
import signal
import sys
import time
import warnings

import torch
import torch.distributed
import torch.multiprocessing
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler, Subset
from torch.utils.data.distributed import DistributedSampler

import outrider
import outrider.torch

FILES, RECORD, RECORDS = 240, 20_000, 300


def cold(*paths):
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def slowly(data):
    time.sleep(0.001)  # what a decoder takes: without it a fast disk's reader is never behind
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(torch.int64).sum().item(), len(data)


class Files(Dataset):
    """Each sample a file."""

    def __init__(self, directory):
        self.paths = [os.path.join(directory, f"f{i}") for i in range(FILES)]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with open(self.paths[index], "rb") as file:
            return index, *slowly(file.read())


class Records(Dataset):
    """Each sample a part of one file."""

    def __init__(self, directory):
        self.path = os.path.join(directory, "records")

    def __len__(self):
        return RECORDS

    def locate(self, index):
        return self.path, index * RECORD, RECORD

    def __getitem__(self, index):
        with open(self.path, "rb", buffering=0) as file:
            return index, *slowly(os.pread(file.fileno(), RECORD, index * RECORD))


class Folder(Files):
    """As torchvision's ImageFolder: pairs of a path and a class."""

    def __init__(self, directory):
        super().__init__(directory)
        self.samples = [(path, 0) for path in self.paths]
        self.all = self.paths
        del self.paths

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        with open(self.samples[index][0], "rb") as file:
            return index, *slowly(file.read())


def make(directory):
    source = random.Random(5)
    for i in range(FILES):
        with open(os.path.join(directory, f"f{i}"), "wb") as file:
            file.write(source.randbytes(source.randrange(1, 60_000)))
    with open(os.path.join(directory, "records"), "wb") as file:
        file.write(source.randbytes(RECORD * RECORDS))


def batches(loader, epochs=1):
    found = []
    for epoch in range(epochs):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        found += [[torch.as_tensor(part).reshape(-1).tolist() for part in batch] for batch in loader]
    return found


def cold_paths(directory):
    return [entry.path for entry in os.scandir(directory)]


def opened_below(directory):
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass
    return [path for path in found if path.startswith(os.path.realpath(directory) + "/")]


def same(directory, name, make_loader, workers=0, epochs=2, share=0.5, **arguments):
    """The same batches, `share` of the bytes fetched ahead in the first epoch; everything closed."""
    torch.manual_seed(7)
    expected = batches(make_loader(0), epochs)  # workers change nothing in it …
    if getattr(make_loader(workers), "persistent_workers", False):  # … but where they last, each epoch's seed
        torch.manual_seed(7)
        expected = batches(make_loader(workers), epochs)
    for attempt in range(5):
        cold(*cold_paths(directory))
        torch.manual_seed(7)
        before = outrider.stats()
        plain = make_loader(workers)
        loader = outrider.torch.prefetch(plain, **arguments)
        assert type(loader) is type(plain) and len(loader) == len(plain)
        got = batches(loader, epochs)
        assert got == expected, name
        del loader, plain
        told = outrider.stats() - before
        bytes_of = sum(sum(batch[2]) for batch in expected) // epochs
        if told.fetched_bytes >= share * bytes_of and told.declared_bytes >= 0.9 * bytes_of:
            break
    else:
        raise AssertionError(f"{name}: of {bytes_of} bytes {told}")
    assert told.diverged_reads == 0, (name, told)
    for _ in range(100):
        if not opened_below(directory):
            return
        time.sleep(0.05)
    raise AssertionError(f"{name}: {opened_below(directory)} are open")


def resident(path):
    """Whether all of a file is in memory."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    start = ctypes.c_char.from_buffer(mapped)
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), pages) == 0
    del start
    mapped.close()
    return all(page & 1 for page in pages)


def comes_before_it_is_read(files):
    """With one batch received, later ones come into memory."""
    for _ in range(20):
        cold(*files.paths)
        if not any(map(resident, files.paths)):
            break
    else:
        raise AssertionError("files stay in memory")
    loader = outrider.torch.prefetch(DataLoader(files, 16))
    batches = iter(loader)
    next(batches)
    later = files.paths[32:200]
    for _ in range(200):
        if all(map(resident, later)):
            return
        time.sleep(0.05)
    raise AssertionError(f"of {len(later)} files {sum(map(resident, later))} are in memory")


def refuses(kind, *arguments, **named):
    try:
        outrider.torch.prefetch(*arguments, **named)
    except kind as error:
        assert str(error)
    else:
        raise AssertionError((arguments, named))


def rank(number, directory, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=number, world_size=2)
    data = Files(directory)
    epochs = []

    def loader(workers):
        return DataLoader(data, 8, sampler=DistributedSampler(data, seed=3), num_workers=workers)

    same(directory, f"rank {number}", loader, workers=1)
    for epoch in range(2):
        sampler = DistributedSampler(data, seed=3)
        prefetching = outrider.torch.prefetch(DataLoader(data, 8, sampler=sampler))
        prefetching.sampler.set_epoch(epoch)
        mine = torch.tensor([i for batch in prefetching for i in batch[0].tolist()])
        others = [torch.empty_like(mine) for _ in range(2)]
        torch.distributed.all_gather(others, mine)
        assert sorted(torch.cat(others).tolist()) == list(range(FILES))
        epochs.append(mine.tolist())
    assert epochs[0] != epochs[1]
    # What each rank's list came to can be summed up.
    figures = [None, None]
    torch.distributed.all_gather_object(figures, outrider.stats())
    assert sum(figures).declared_bytes > max(f.declared_bytes for f in figures) > 0
    torch.distributed.destroy_process_group()


def main():
    warnings.simplefilter("error", RuntimeWarning)
    torch.set_num_threads(1)
    directory = sys.argv[-1]
    make(directory)
    if sys.argv[1] == "--ranks":
        import socket

        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        torch.multiprocessing.spawn(rank, (directory, port), nprocs=2)
        print("well, PyTorch", torch.__version__)
        return
    files, records, folder = Files(directory), Records(directory), Folder(directory)
    same(directory, "no workers", lambda _: DataLoader(files, 16, shuffle=True))
    same(directory, "records", lambda _: DataLoader(records, 16, shuffle=True))
    same(directory, "a folder in order", lambda _: DataLoader(folder, 16), epochs=1)
    same(directory, "no batches", lambda _: DataLoader(files, batch_size=None, shuffle=True))
    same(directory, "locate=", lambda _: DataLoader(folder, 16, shuffle=True), locate=lambda i: [folder.all[i]])
    both = ConcatDataset([files, Subset(records, range(100, 200))])
    same(directory, "parts", lambda _: DataLoader(both, 16, shuffle=True))
    for method, persistent, data in [
        ("fork", False, files),
        ("fork", True, records),
        ("spawn", True, files),
        ("forkserver", False, records),
    ]:

        def loader(workers):
            context, persists = (method, persistent) if workers else (None, False)
            return DataLoader(
                data, 16, shuffle=True, num_workers=workers, multiprocessing_context=context, persistent_workers=persists
            )

        same(directory, f"{method} {persistent}", loader, workers=2)
    comes_before_it_is_read(files)
    # With few descriptors fewer files are open at once, and still all are fetched.
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (80, limits[1]))
    same(directory, "few descriptors", lambda _: DataLoader(files, 16, shuffle=True))
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    # A sampler of its own, and one of batches.
    for sampler in [RandomSampler(files), BatchSampler(SequentialSampler(files), 7, True)]:
        torch.manual_seed(3)
        expected = list(sampler)
        torch.manual_seed(3)
        ahead = outrider.torch.prefetch(sampler, files)
        assert list(ahead) == expected and len(ahead) == len(sampler)
        torch.manual_seed(3)
        assert list(pickle.loads(pickle.dumps(ahead))) == expected
    # One without an end, of samples that are in no file.
    drawn = itertools.count()
    endless = outrider.torch.prefetch(drawn, files, locate=lambda _: None, ahead=100)
    assert list(itertools.islice(endless, 1000)) == list(range(1000)) and next(drawn) <= 1100
    # An epoch that is left early, and another of the same loader meanwhile.
    loader = outrider.torch.prefetch(DataLoader(files, 16, num_workers=1))
    first = iter(loader)
    next(first)
    assert len(list(loader)) == len(loader)
    del first
    # A sample that can't be read is the loader's own error, as ever.
    os.rename(files.paths[100], files.paths[100] + "-")
    try:
        list(outrider.torch.prefetch(DataLoader(files, 16, num_workers=1)))
    except FileNotFoundError:
        os.rename(files.paths[100] + "-", files.paths[100])
    else:
        raise AssertionError("a missing file")
    # Where nobody can say where samples lie, be it the first or a later one, the loader goes on.
    for lost in [0, 50]:
        where = {i: path for i, path in enumerate(files.paths) if i != lost}
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            loader = outrider.torch.prefetch(DataLoader(files, 16), locate=where.__getitem__)
            assert len(list(loader)) == len(loader)
        assert [w.category for w in told] == [RuntimeWarning], told

    # So it does where they are said to lie where nothing can.
    for wrong in [-5, 1 << 70, float("nan"), 1.5, "x"]:
        for place in [(files.paths[0], wrong, 10), (files.paths[0], 0, wrong)]:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                loader = outrider.torch.prefetch(
                    DataLoader(files, 16), locate=lambda i, place=place: place if i == 50 else files.paths[i]
                )
                assert len(list(loader)) == len(loader)
            assert [w.category for w in told] == [RuntimeWarning], (place, told)
            refuses((TypeError, ValueError), DataLoader(files), locate=lambda i, place=place: place)
    # A child that goes on with an epoch has no list, and gets the same draws.
    sampler = outrider.torch.prefetch(SequentialSampler(files), files)
    for _ in range(20):
        draws = iter(sampler)
        next(draws)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os._exit(0 if list(draws) == list(range(1, FILES)) else 1)
        assert os.waitpid(child, 0)[1] == 0
        del draws

    class Endless(IterableDataset):
        def __iter__(self):
            return iter(range(10))

    refuses(TypeError, DataLoader(Endless()))
    refuses(TypeError, DataLoader([1, 2, 3]))
    refuses(TypeError, RandomSampler(files))
    refuses(TypeError, DataLoader(files), locate=lambda i: 5)
    refuses(ValueError, DataLoader(files), ahead=0)
    for wrong in ["x", float("nan"), 1.5]:
        refuses(TypeError, DataLoader(files), ahead=wrong)
        refuses(TypeError, DataLoader(files), behind=wrong)
    refuses(TypeError, DataLoader(files), locate=5)
    print("well, PyTorch", torch.__version__)


if __name__ == "__main__":
    main()
