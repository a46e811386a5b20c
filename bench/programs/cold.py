#!/usr/bin/env python3
"""Programs on cold files of an emulated disk: each command alone and under `outrider run`, in turns.

    outrider-lab disk up --size 8G --mount DIR off
    cold.py --dir DIR --outrider OUTRIDER [--before OUTRIDER] [--model nvme] [--runs 3] [--jsonl FILE] [CASE…]

What all cases read (7 GB) is made in DIR the first time. A command finds it in $D and writes to $O, empty and in memory. The programs themselves are warm, unless a case
has copies of them in $D. Whole commands are timed; standard output, standard error, exit code and all files left in $O have to be alike in all columns. Cases whose
program is missing are passed over. Needs root.
"""
import argparse, hashlib, json, os, resource, shutil, statistics, subprocess, sys, time

RANDOM = 'import random, os, sys; r = random.Random(1); D = os.environ["D"]\n'
TREE = "[ -d tree ] || { mkdir tree && cp -a /usr/lib/python3.11 /usr/include/c++ tree/; }"
BIG = "[ -f log ] || seq 1 30000000 > log"
SQLITE = """sqlite3 db "create table a(id integer primary key, k int, b int, pad text); create table c(id integer primary key, pad text);
insert into a select value, abs(random())%1000000, abs(random())%400000, hex(randomblob(100)) from generate_series(1,700000);
insert into c select value, hex(randomblob(150)) from generate_series(1,400000); create index ak on a(k);" """
MARIA = """mkdir maria && mariadb-install-db --no-defaults --user=root --datadir=$D/maria >/dev/null 2>&1 && echo "create database t;
create table t.a(id int primary key, k int, pad varchar(250), key(k)) engine=innodb;
insert into t.a with recursive s(n) as (select 1 union all select n+1 from s where n < 1000) select (x.n-1)*1000+y.n, floor(rand(1)*1000000), repeat(char(97+y.n%26),200) from s x, s y;" |
mariadbd --no-defaults --bootstrap --user=root --datadir=$D/maria --innodb-log-file-size=16M --innodb-fast-shutdown=0 2>/dev/null"""
GIT = """mkdir git && cd git && git init -q . && git config user.email a@b && git config user.name a && git config gc.auto 0 && for d in json asyncio email unittest; do
cp -r /usr/lib/python3.11/$d . && git add . && git commit -qm $d && for f in $(find $d -name '*.py'); do sed -i s/self/this/g $f; git commit -qam $f; done; done
cp -r /usr/lib/python3/dist-packages/numpy /usr/include/c++ . ; git add . ; git commit -qm more; git repack -adq"""
MAILDIR = """mkdir -p mail/cur mail/new mail/tmp; python3 -c '%sfor i in range(6000):
 t = "From: a%%d@x.org\\nTo: b@x.org\\nSubject: s %%d\\nDate: Mon, 1 Jan 2024 00:%%02d:%%02d +0000\\nMessage-ID: <%%d@x.org>\\n\\n" %% (i, i, i//60%%60, i%%60, i)
 t += "".join("%%x word line\\n" %% r.getrandbits(200) for _ in range(r.randrange(5, 300)))
 open(D + "/mail/cur/%%d.%%d.h:2,S" %% (r.getrandbits(32), i), "w").write(t); open(D + "/mbox", "a").write("From a Mon Jan  1 00:00:00 2024\\n" + t + "\\n")'""" % RANDOM
BLOBS = "mkdir blobs; python3 -c '%sfor i in range(1500): open(D + \"/blobs/%%05d\" %% i, \"wb\").write(r.randbytes(r.randrange(1000, 600000)))'" % RANDOM
NPY = "python3 -c 'import numpy as np; np.save(\"x.npy\", np.random.default_rng(1).random((60000, 512)))'"
H5 = "python3 -c 'import numpy, h5py; h5py.File(\"x.h5\", \"w\").create_dataset(\"a\", data=numpy.random.default_rng(1).random((8000, 4000)), chunks=(100, 100))'"
SAM = """python3 -c '%sprint("@HD\\tVN:1.6\\tSO:coordinate\\n@SQ\\tSN:c1\\tLN:100000000")
for i in range(900000): print("r%%d\\t0\\tc1\\t%%d\\t60\\t100M\\t*\\t0\\t0\\t%%s\\t%%s" %% (i, i*100+1, "".join(r.choices("ACGT", k=100)), "".join(r.choices("ABCDEFGH", k=100))))' | samtools view -b -o x.bam - && samtools index x.bam""" % RANDOM
OBJECTS = """mkdir obj && cd obj && python3 -c 'for i in range(2500): open("f%d.s" % i, "w").write(".globl f%d\\nf%d: ret\\n.data\\n.globl d%d\\nd%d: .fill %d, 8, %d\\n" % (i, i, i, i, 100 + i * 7919 % 8000, i))' &&
for i in f*.s; do as -o ${i%.s}.o $i; done; rm *.s; ar rcs ../lib.a *.o"""
QCOW = """python3 -c '%sf = open(D + "/raw", "wb"); f.truncate(400 << 20)
for i in r.sample(range(6400), 4500): f.seek(i << 16); f.write(r.randbytes(65536))
order = r.sample(range(6400), 6400); open(D + "/order", "w").write("\\n".join("write -q -s raw %%dk 64k" %% (i * 64) for i in order))'
qemu-img create -q -f qcow2 q 400M; qemu-io -f qcow2 q < order >/dev/null; qemu-img convert -W -m 16 -O qcow2 raw q2""" % RANDOM
EXT4 = "mkdir tree2; cp -a /usr/lib/python3.11 /usr/include/c++ tree2; truncate -s 600M img; mkfs.ext4 -q -d tree2 img; rm -r tree2"
MEDIA = """mkdir media; ffmpeg -loglevel error -f lavfi -i testsrc2=s=640x360:d=8 -c:v mpeg4 -b:v 3M m.mp4; for i in $(seq 50); do cp m.mp4 media/$i.mp4; done; rm m.mp4"""
JPEGS = """mkdir jpegs; python3 -c '%sfrom PIL import Image
for i in range(600): Image.frombytes("RGB", (256, 256), r.randbytes(196608)).save(D + "/jpegs/%%d.jpg" %% r.getrandbits(32), quality=85)'""" % RANDOM
LMDB = """mkdir lm; python3 -c '%simport lmdb; e = lmdb.open(D + "/lm", map_size=1 << 30)
with e.begin(write=True) as t:
 for i in r.sample(range(300000), 300000): t.put(b"%%08d" %% i, r.randbytes(700))'""" % RANDOM
REDIS = """mkdir redis && (python3 -c '%sfor i in range(300000): print("SET k%%d %%s" %% (i, r.randbytes(250).hex()))' | (redis-server --port 0 --unixsocket /tmp/cold.sock --dir $D/redis --save '' --daemonize yes >/dev/null; sleep 1; redis-cli -s /tmp/cold.sock --pipe >/dev/null); redis-cli -s /tmp/cold.sock shutdown save)""" % RANDOM
PY = "python3 -c '%s%%s'" % RANDOM
JARS = "cp -a blobs j; cd j; for i in 0*; do mv $i $i.class; done; jar c0f ../big.jar .; rm -rf ../j"

# Name: what is made, what is run.
CASES = {
    "maria-scan": (MARIA, "q 'select count(*), sum(k) from t.a where pad<>0x79'"),
    "maria-index": (MARIA, "q 'select count(pad), sum(k) from t.a force index(k) where k between 1000 and 8000'"),
    "maria-desc": (MARIA, "q 'select count(*), sum(k) from (select k, pad from t.a force index(primary) order by id desc limit 400000) x'"),
    "maria-check": (MARIA, "q 'check table t.a'"),
    "maria-scan-direct": (MARIA, "q 'select count(*), sum(k) from t.a where pad<>0x79' --innodb-flush-method=O_DIRECT"),
    "sqlite-dump": (SQLITE, "sqlite3 $D/db .dump | md5sum"),
    "sqlite-check": (SQLITE, "sqlite3 $D/db 'pragma integrity_check'"),
    "sqlite-desc": (SQLITE, "sqlite3 $D/db 'select sum(id), max(pad) from (select id, pad from a order by id desc)'"),
    "sqlite-index": (SQLITE, "sqlite3 $D/db 'select sum(id), max(pad) from (select id, pad from a where k < 10000 order by k)'"),
    "sqlite-join": (SQLITE, "sqlite3 $D/db 'select count(*), max(c.pad) from a cross join c on c.id = a.b where a.id < 20000'"),
    "sqlite-mmap": (SQLITE, "sqlite3 $D/db 'pragma mmap_size=1000000000' 'select count(*), max(pad) from a'"),
    "sqlite-vacuum": (SQLITE, "sqlite3 $D/db \"vacuum into '$O/db'\""),
    "borg-create": (TREE, "export BORG_BASE_DIR=/dev/shm/cold-borg; borg init -e none $O/r; borg create -C none $O/r::a $D/tree; borg list --format '{mode} {size} {path}{NL}' $O/r::a | md5sum; rm -rf $O/r $BORG_BASE_DIR"),
    "borg-extract": ("BORG_BASE_DIR=/tmp/cold-borg borg init -e none repo && BORG_BASE_DIR=/tmp/cold-borg borg create -C none repo::a /usr/lib/python3.11 /usr/include/c++", "export BORG_BASE_DIR=$O/b BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes; mkdir $O/x; cd $O/x; borg extract --bypass-lock $D/repo::a; rm -rf $O/b"),
    "borg-check": (None, "export BORG_BASE_DIR=$O/b BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes; borg check --repository-only $D/repo; rm -rf $O/b"),
    "notmuch-new": (MAILDIR, "mkdir $O/m; ln -s $D/mail/cur $O/m/cur; printf '[database]\\npath=%s\\n' $O/m > $O/c; notmuch --config=$O/c new --quiet; notmuch --config=$O/c count; rm -rf $O/m"),
    "maildir-grep": (MAILDIR, "grep -rlc 'ffff' $D/mail | sort | md5sum"),
    "maildir-head": (MAILDIR, "for f in $D/mail/cur/*; do read -r l < $f; echo $l; done | md5sum"),
    "mbox-formail": (MAILDIR, "formail -X From: -X Subject: -s < $D/mbox | md5sum"),
    "mbox-python": (MAILDIR, "python3 -c 'import mailbox, os; m = mailbox.mbox(os.environ[\"D\"] + \"/mbox\"); print(sum(len(m[i][\"subject\"]) for i in range(0, 5000, 7)))'"),
    "tar-t": (BLOBS + "; tar cf blobs.tar blobs", "tar tf $D/blobs.tar | md5sum"),
    "tar-member": (None, "tar xf $D/blobs.tar -C $O blobs/01234"),
    "python-tar": (None, "python3 -c 'import tarfile, os; print(len(tarfile.open(os.environ[\"D\"] + \"/blobs.tar\").getnames()))'"),
    "cpio-t": ("find blobs | cpio --quiet -o -H newc > blobs.cpio", "cpio --quiet -t < $D/blobs.cpio | md5sum"),
    "zip-list": ("zip -0qr blobs.zip blobs", "unzip -l $D/blobs.zip | md5sum"),
    "zip-members": (None, "unzip -p $D/blobs.zip blobs/0'*'7 | md5sum"),
    "zip-test": (None, "unzip -qt $D/blobs.zip"),
    "zip-random": (None, PY % 'import zipfile; z = zipfile.ZipFile(D + "/blobs.zip"); print(sum(len(z.read(n)) for n in r.sample(z.namelist(), 300)))'),
    "zip-heads": (None, PY % 'import zipfile; z = zipfile.ZipFile(D + "/blobs.zip"); print(sum(z.open(n).read(100)[0] for n in z.namelist()[1:]))'),
    "7z-list": ("7z a -mx0 -bso0 blobs.7z blobs", "7z l $D/blobs.7z | md5sum"),
    "7z-member": (None, "7z x -so $D/blobs.7z blobs/01100 blobs/00007 | md5sum"),
    "git-log-p": (GIT, "git -C $D/git log -p | md5sum"),
    "git-fsck": (GIT, "git -C $D/git fsck --no-progress"),
    "git-repack": (GIT, "cp -r $D/git/.git $O/g; git -C $O/g repack -adfq --threads=1 --depth=5 --window=2; git -C $O/g count-objects; rm -r $O/g"),
    "git-status": (GIT, "git -C $D/git --no-optional-locks status --short"),
    "git-checkout": (GIT, "mkdir $O/w; GIT_INDEX_FILE=$O/i git --git-dir=$D/git/.git --work-tree=$O/w checkout -q HEAD~0 -- . ; rm $O/i"),
    "git-blame": (GIT, "git -C $D/git blame -C email/message.py | md5sum"),
    "rsync-sums": (TREE + "; cp -a tree tree3", "rsync -rnci $D/tree/ $D/tree3/ | md5sum"),
    "md5sum-c": (TREE + "; find tree -type f -exec md5sum {} + > sums; sort -k2 sums > sorted", "cd $D; md5sum --quiet -c sums"),
    "md5sum-shuffled": (BIG + "; shuf --random-source=log sums > shuffled", "cd $D; md5sum --quiet -c shuffled"),
    "updatedb": (TREE, "updatedb -U $D/tree -o $O/l --prune-bind-mounts no; plocate -d $O/l '' | wc -l; rm $O/l"),
    "nftw": (TREE, "cd $D/tree; python3 -c 'import os; print(sum(e.st_size for e in (os.lstat(os.path.join(d, f)) for d, _, n in os.walk(\".\") for f in n)))'"),
    "chown-fts": (TREE, "chgrp -Rh -c nogroup $D/tree | wc -l; chgrp -Rh root $D/tree"),
    "file": (TREE, "cd $D/tree; find . -type f | head -3000 | file -f - | md5sum"),
    "ffprobe": (MEDIA, "for i in $D/media/*; do ffprobe -loglevel error -show_entries format=duration $i; done | md5sum"),
    "ffmpeg-copy": (MEDIA, "for i in 1 2 3; do ffmpeg -loglevel error -i $D/media/$i.mp4 -c copy -f mpegts - | md5sum; done"),
    "npy-rows": (NPY, PY % 'import numpy as np; a = np.load(D + "/x.npy", mmap_mode="r"); print(sum(a[i].sum() for i in r.sample(range(60000), 6000)))'),
    "npy-column": (NPY, PY % 'import numpy as np; a = np.load(D + "/x.npy", mmap_mode="r"); print(a[:, 7].sum())'),
    "npy-half": (NPY, PY % 'import numpy as np; a = np.load(D + "/x.npy", mmap_mode="r"); print(a[::3].sum())'),
    "h5-rows": (H5, PY % 'import h5py; a = h5py.File(D + "/x.h5")["a"]; print(sum(a[i].sum() for i in range(0, 8000, 400)))'),
    "h5-columns": (H5, PY % 'import h5py; a = h5py.File(D + "/x.h5")["a"]; print(sum(a[:, i].sum() for i in range(0, 4000, 400)))'),
    "h5-tiles": (H5, PY % 'import h5py; a = h5py.File(D + "/x.h5")["a"]; print(sum(a[i*100:i*100+100, j*100:j*100+100].sum() for i, j in r.sample([(i, j) for i in range(80) for j in range(40)], 800)))'),
    "csv-pandas": (PY % 'open(D + "/x.csv", "w").write("".join("%d,%f,%x\\n" % (i, r.random(), r.getrandbits(64)) for i in range(2500000)))', "python3 -c 'import pandas, os; print(pandas.read_csv(os.environ[\"D\"] + \"/x.csv\", header=None)[1].sum())'"),
    "loader": ("head -c 400M /dev/urandom > train", PY % """import multiprocessing as m
def work(n):
 f = os.open(D + "/train", os.O_RDONLY); s = 0
 for i in order[n::4]: s += os.pread(f, 65536, i << 16)[9]
 return s
order = r.sample(range(6400), 3000)
print(sum(m.Pool(4).map(work, range(4))))"""),
    "loader-queue": (None, PY % """import multiprocessing as m
def work(i): return os.pread(f, 65536, i << 16)[9]
f = os.open(D + "/train", os.O_RDONLY)
print(sum(m.Pool(4).imap(work, r.sample(range(6400), 3000))))"""),
    "loader-files": (JPEGS, PY % 'from PIL import Image; n = sorted(os.listdir(D + "/jpegs")); r.shuffle(n); print(sum(Image.open(D + "/jpegs/" + x).getpixel((3, 3))[0] for x in n))'),
    "jpegs": (JPEGS, PY % 'from PIL import Image; print(sum(Image.open(D + "/jpegs/" + x).getpixel((3, 3))[0] for x in sorted(os.listdir(D + "/jpegs"))))'),
    "redis-rdb": (REDIS, "redis-server --port 0 --unixsocket $O/s --dir $D/redis --save '' >/dev/null & until redis-cli -s $O/s dbsize 2>/dev/null | grep -q '^[1-9]'; do sleep .02; done; redis-cli -s $O/s dbsize; redis-cli -s $O/s shutdown nosave; wait"),
    "lmdb-dump": (LMDB, "mdb_dump $D/lm | md5sum"),
    "lmdb-copy": (LMDB, "mdb_copy $D/lm | md5sum"),
    "lmdb-compact": (LMDB, "mdb_copy -c $D/lm | md5sum"),
    "lmdb-random": (LMDB, PY % 'import lmdb; t = lmdb.open(D + "/lm", readonly=True, lock=False).begin(); print(sum(t.get(b"%08d" % i)[5] for i in r.sample(range(300000), 30000)))'),
    "lmdb-scan": (LMDB, PY % 'import lmdb; t = lmdb.open(D + "/lm", readonly=True, lock=False).begin(); print(sum(v[5] for k, v in t.cursor()))'),
    "rg-log": (BIG, "rg -c 99999 $D/log"),
    "rg-tree": (TREE, "rg -c --sort path import $D/tree | md5sum"),
    "rg-tree-any": (TREE, "rg -c import $D/tree | sort | md5sum"),
    "ld-objects": (OBJECTS, "cd $D/obj; ld -r -o $O/all.o *.o"),
    "ld-archive": (OBJECTS, "ld -r -o $O/all.o --whole-archive $D/lib.a"),
    "ld-some": (OBJECTS, "ld -r -o $O/all.o $(seq -f '-uf%g' 0 37 2499) $D/lib.a"),
    "ar-t": (OBJECTS, "ar t $D/lib.a | md5sum"),
    "ar-x": (OBJECTS, "cd $O; ar x $D/lib.a"),
    "nm": (OBJECTS, "nm $D/lib.a | md5sum"),
    "strip-tree": (OBJECTS, "cd $D/obj; size *.o | md5sum"),
    "java-start": ("cp -aL /usr/lib/jvm/java-17-openjdk-amd64 jdk 2>/dev/null; printf 'public class A { public static void main(String[] a) { System.out.println(java.util.stream.IntStream.range(0, 9).boxed().map(String::valueOf).toList()); } }' > A.java", "$D/jdk/bin/java -XX:TieredStopAtLevel=1 $D/A.java"),
    "javac": (None, "$D/jdk/bin/javac -d $O $D/A.java"),
    "jar-t": (JARS, "jar tf $D/big.jar | md5sum"),
    "node-npm": ("cp -aL /usr/lib/node_modules . 2>/dev/null; cp $(command -v node) node", "export HOME=$O; $D/node $D/node_modules/npm/bin/npm-cli.js --offline help >/dev/null; $D/node -e 'require(process.env.D + \"/node_modules/npm/lib/npm.js\"); console.log(1)'; rm -rf $O/.npm"),
    "python-start": ("mkdir -p py; cp -a /usr/lib/python3.11 py/; cp -a /usr/lib/python3/dist-packages py/site", "PYTHONPATH=$D/py/python3.11:$D/py/python3.11/lib-dynload:$D/py/site python3 -SB -c 'import pandas, json, email, http.client, asyncio, unittest; print(pandas.__version__)'"),
    "perl-back": (BIG, """perl -e 'open F, "<", "$ENV{D}/log"; $n = -s F; $c = 0; for ($p = $n - 4096; $p > 0; $p -= 4096 + ($p >> 12) % 5 * 4096) { seek F, $p, 0; read F, $b, 4096; $c += ord $b } print "$c\\n"'"""),
    "tac": (BIG, "tac $D/log | md5sum"),
    "tail-n": (BIG, "tail -n 5000000 $D/log | md5sum"),
    "back-gaps": (BIG, PY % 'f = os.open(D + "/log", os.O_RDONLY); p = os.fstat(f).st_size; s = 0\nwhile p > 8192:\n p -= int(r.expovariate(1/65536)) + 8192; s += len(os.pread(f, 8192, max(p, 0)))\nprint(s)'),
    "threads-gaps": (BIG, PY % 'import threading; f = os.open(D + "/log", os.O_RDONLY); n = os.fstat(f).st_size // 4\ndef work(k):\n q = random.Random(k); p = k * n\n while p < k * n + n: os.pread(f, 8192, p); p += int(q.expovariate(1/65536)) + 8192\nt = [threading.Thread(target=work, args=(k,)) for k in range(4)]\nfor x in t: x.start()\nfor x in t: x.join()\nprint(n)'),
    "look-binary": (BIG, "for i in 12 345 77777 999999; do look -b $i $D/log | head -1; done; sort -C $D/log; head -c 3000000 $D/log | tail -c 10"),
    "cat-elsewhere": (BIG, "cat $D/log > $O/c"),
    "cp-elsewhere": (BIG, "cp $D/log $O/c"),
    "cp-within": (BIG, "cp $D/log $D/c; stat -c %s $D/c; rm $D/c"),
    "copyfile": (BIG, PY % 'import shutil; shutil.copyfile(D + "/log", os.environ["O"] + "/c")'),
    "copytree": (BLOBS, PY % 'import shutil; shutil.copytree(D + "/blobs", os.environ["O"] + "/c")'),
    "cp-r-elsewhere": (BLOBS, "cp -r $D/blobs $O/c"),
    "sort": (BIG, "head -c 120M $D/log | sort -S 20M -T $O | md5sum"),
    "comm": (BIG + "; cp log log2", "cmp $D/log $D/log2; comm -3 --nocheck-order $D/log $D/log2 | wc -l"),
    "split": (BIG, "split -n 7 $D/log $O/"),
    "qemu-convert": (QCOW, "qemu-img convert -O raw $D/q2 $O/r"),
    "qemu-convert-scattered": (QCOW, "qemu-img convert -O raw $D/q $O/r"),
    "qemu-compare": (QCOW, "qemu-img compare $D/q2 $D/raw"),
    "qemu-check": (QCOW, "qemu-img check $D/q"),
    "mksquashfs": (TREE, "mksquashfs $D/tree $O/s -noI -noD -noF -noX -quiet -no-progress -mkfs-time 0 -processors 1"),
    "unsquashfs": ("mksquashfs tree s -quiet -no-progress", "unsquashfs -q -n -d $O/x $D/s"),
    "unsquashfs-l": (None, "unsquashfs -ll $D/s | md5sum"),
    "e2fsck": (EXT4, "e2fsck -fn $D/img | grep -v ^e2fsck"),
    "debugfs-rdump": (EXT4, "mkdir $O/x; debugfs -R \"rdump / $O/x\" $D/img; rm -r $O/x/lost+found"),
    "dumpe2fs": (EXT4, "dumpe2fs $D/img | md5sum"),
    "e2image": (EXT4, "e2image -r $D/img - | md5sum"),
    "samtools-index": (SAM, "samtools index $D/x.bam $O/i"),
    "samtools-region": (SAM, "samtools view $D/x.bam $(for i in $(seq 500000 900000 90000000); do echo c1:$i-$((i + 200)); done) | md5sum"),
    "samtools-stats": (SAM, "samtools flagstat $D/x.bam"),
    "xz-test": ("head -c 60M log | xz -0 -T1 > l.xz", "xz -t $D/l.xz; xz -l $D/l.xz | tail -1 | cut -c1-40"),
}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--dir", required=True)
parser.add_argument("--outrider", required=True)
parser.add_argument("--before")
parser.add_argument("--model", default="nvme")
parser.add_argument("--runs", type=int, default=3)
parser.add_argument("--jsonl")
parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
args = parser.parse_args()
for name in args.cases:
    if name not in CASES:
        parser.error(f"{name}: no such case; one of {', '.join(CASES)}")
lab = os.path.join(os.path.dirname(args.outrider), "outrider-lab")
out = f"/dev/shm/cold-{os.getpid()}"
env = os.environ | {"PATH": "/usr/bin:/usr/sbin:/bin:/sbin:" + os.environ["PATH"], "D": args.dir, "O": out, "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
columns = {"stock": []} | ({"before": [args.before, "run", "--"]} if args.before else {})
columns["outrider"] = [args.outrider, "run", "--"]
# A query's answer goes to a file, and the server changes nothing of its own.
SHELL = """q() { q=$1; shift; case "$q" in select*) w=" into outfile '$O/answer'";; esac; echo "$q$w;" > $O/q; chmod 777 $O
mariadbd --no-defaults --bootstrap --user=root --datadir=$D/maria --innodb-read-only --innodb-log-file-size=16M --innodb-flush-method=fsync "$@" < $O/q 2>/dev/null; }
"""


def disk(*words):
    subprocess.run([lab, "disk", words[0], args.dir, *words[1:]], check=True, stdout=subprocess.DEVNULL)


def make(recipe):
    mark = os.path.join(args.dir, ".made-" + hashlib.md5(recipe.encode()).hexdigest())
    if not os.path.exists(mark):
        disk("model", "off")
        made = subprocess.run(["bash", "-c", recipe], cwd=args.dir, env=env, stdout=subprocess.DEVNULL)
        open(mark, "w").write(str(made.returncode))


def state():
    """A digest of what is in $O."""
    left = hashlib.md5()
    for d, dirs, files in os.walk(out):
        dirs.sort()
        for f in sorted(files):
            path = os.path.join(d, f)
            left.update(os.path.relpath(path, out).encode())
            if os.path.isfile(path) and not os.path.islink(path):
                left.update(open(path, "rb").read())
    return left.hexdigest()


def timed(prefix, command):
    shutil.rmtree(out, ignore_errors=True)
    os.mkdir(out)
    disk("cold")
    used, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(prefix + ["bash", "-c", SHELL + command], env=env, cwd="/", capture_output=True, stdin=subprocess.DEVNULL)
    took, now = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return took, cpu, (done.returncode, done.stdout.replace(out.encode(), b"O"), done.stderr.replace(out.encode(), b"O"), state())


for recipe, _ in CASES.values():
    if recipe:
        make(recipe)
# The scale of the model before stays where none is given.
disk("model", "scale=1", *args.model.split())
for name in args.cases or CASES:
    command = CASES[name][1]
    runs, cpus, answers = {c: [] for c in columns}, {c: [] for c in columns}, {}
    for i in range(args.runs):
        for column in list(columns)[:: 1 if i % 2 == 0 else -1]:
            took, cpu, answer = timed(columns[column], command)
            runs[column].append(round(took, 3))
            cpus[column].append(round(cpu, 3))
            answers.setdefault(answer, []).append(column)
    medians = {c: statistics.median(r) for c, r in runs.items()}
    alike = len(answers) == 1
    rc = next(iter(answers))[0]
    if args.jsonl:
        with open(args.jsonl, "a") as f:
            f.write(json.dumps({"case": name, "model": args.model, "seconds": runs, "cpu": cpus, "alike": alike, "exit": rc}) + "\n")
    print(f"{name:24}", *(f"{c} {m:.3f}" for c, m in medians.items()), f"x{medians['stock'] / medians['outrider']:.2f}", "" if alike else "DIFFERS", rc or "", flush=True)
    if not alike or rc:
        print(*(f"{c}: {a[0]} {a[1][-200:]} {a[2][-300:]} {a[3]}" for a, c in answers.items()), sep="\n", flush=True)
shutil.rmtree(out, ignore_errors=True)
