#!/bin/sh
# bcache_layout.sh BCACHE_KO BTF_BASE: a header with where bcache's structures keep what outrider_bcache reads, from the BTF of
# this very bcache.ko (pahole), and its build ID, by which outrider_bcache knows it again when it is loaded.
set -eu
module=$1 base=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
case $module in
*.xz) xz -dc "$module" >"$work/bcache.ko" ;;
*.zst) zstd -qdc "$module" >"$work/bcache.ko" ;;
*.gz) gzip -dc "$module" >"$work/bcache.ko" ;;
*) cp "$module" "$work/bcache.ko" ;;
esac

# offset STRUCT MEMBER
offset() {
    [ -e "$work/$1" ] || pahole --btf_base "$base" -C "$1" "$work/bcache.ko" >"$work/$1"
    found=$(sed -n "s|^.*[ *]$2; *\/\* *\([0-9][0-9]*\) .*|\1|p" "$work/$1" | head -1)
    [ -n "$found" ] || { echo "bcache_layout.sh: no member $2 in struct $1 of $module" >&2; exit 1; }
    echo "$found"
}
define() { echo "#define $1 $2"; }

{
    define BTREE_OP_WAIT "$(offset btree_op wait)"
    define BTREE_OP_LOCK "$(offset btree_op lock)"
    define BTREE_OP_SIZE "$(sed -n 's|.*/\* size: \([0-9]*\),.*|\1|p' "$work/btree_op")"
    define CACHED_DEV_DISK "$(offset cached_dev disk)"
    define CACHED_DEV_BDEV "$(offset cached_dev bdev)"
    define CACHED_DEV_COUNT "$(offset cached_dev count)"
    define CACHED_DEV_DETACH "$(offset cached_dev detach)"
    define CACHED_DEV_DATA_OFFSET "$(($(offset cached_dev sb) + $(offset cache_sb data_offset)))"
    define BCACHE_DEVICE_SET "$(offset bcache_device c)"
    define BCACHE_DEVICE_ID "$(offset bcache_device id)"
    define CACHE_SET_CACHE "$(offset cache_set cache)"
    define CACHE_BDEV "$(offset cache bdev)"
    id=$(readelf -n "$work/bcache.ko" | sed -n 's/.*Build ID: //p')
    [ -n "$id" ] || { echo "bcache_layout.sh: $module has no build ID" >&2; exit 1; }
    define BCACHE_BUILD_ID "\"$id\""
} >"$work/header"
cat "$work/header"
