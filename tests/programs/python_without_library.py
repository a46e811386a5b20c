"""Uses all of python/outrider on FILE where there is no library: everything succeeds, and the program reads what it would."""

import sys

import outrider
import outrider.torch

path = sys.argv[1]
with open(path, "rb", buffering=0) as file:
    data = file.read()

assert not outrider.available and not outrider.seen
assert outrider.version() == (0, 0, 0)
for name in [path, file.name]:
    with outrider.declare(name, [(0, 10), (20, 30)]) as taken:
        assert taken == 2
    with outrider.pull(name, iter([(0, 10)])) as pulled:
        pulled.close()
    assert outrider.pull(name, None) is None
try:
    outrider.declare(path, [(-1, 2)])
except ValueError:
    pass
else:
    raise AssertionError("a wrong range is one without a library, too")
with outrider.Client() as client, outrider.File(path) as opened:
    client.add_region(opened)
    assert client.request([(opened, 0, 10)]) == 1
    with client.ignore():
        assert opened.read() == data
    assert opened.pread(10, 5) == data[5:15] == outrider.pread(opened, 10, 5)
    outrider.reading(opened, 0, 10)
    client.remove_region(opened)
outrider.settle()
assert outrider.stats() == outrider.Stats()
with outrider.ahead(path, [(path, 0, 10)]) as fetched:
    fetched.reading(path, 0, 10)
    fetched.passed()
    fetched.wait()
assert [shard.read() for shard in outrider.shards([path, path])] == [data, data]


class Files:
    paths = [path] * 5

    def __getitem__(self, index):
        return data

    def __len__(self):
        return len(self.paths)


assert list(outrider.torch.prefetch([3, 1, 2], Files())) == [3, 1, 2]
