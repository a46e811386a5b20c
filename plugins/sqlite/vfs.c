/*
 * An SQLite extension: queries that follow a secondary index find the table's pages in the page cache.
 *
 * Loaded into a program (sqlite3's `.load`, load_extension(), Python's Connection.load_extension), it puts a VFS before the
 * default one. Databases that are opened from then on are helped; those that are open already are not. Every method passes
 * its call on as it came and returns what it returned: the shim looks at pages that were read, and nothing else (foresee.h says
 * what it does with them). It opens no file of its own, because closing one would drop the locks that SQLite holds.
 *
 * Entry point: sqlite3_outrider_init. SQL function: outrider_counts(), what happened so far as JSON.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sqlite3ext.h"
SQLITE_EXTENSION_INIT1

#include "foresee.h"

/* Our file: the real one follows. */
struct file {
    sqlite3_file base;
    sqlite3_file *real;
    struct foresee *foresee; /* NULL: it isn't followed */
};

static sqlite3_vfs *below;
static sqlite3_vfs shim;

#define FILE_OF(f) ((struct file *)(f))
#define REAL(f) (FILE_OF(f)->real)

/* ---- Methods of files ---- */

static int file_close(sqlite3_file *f) {
    foresee_close(FILE_OF(f)->foresee);
    FILE_OF(f)->foresee = NULL;
    return REAL(f)->pMethods->xClose(REAL(f));
}

static int file_read(sqlite3_file *f, void *bytes, int length, sqlite3_int64 offset) {
    struct foresee *foresee = FILE_OF(f)->foresee;
    int result;
    if (length > 0 && offset >= 0)
        foresee_reads(foresee, (uint64_t)offset, (size_t)length);
    result = REAL(f)->pMethods->xRead(REAL(f), bytes, length, offset);
    if (result == SQLITE_OK && length > 0 && offset >= 0)
        foresee_was_read(foresee, (uint64_t)offset, bytes, (size_t)length);
    return result;
}

static int file_write(sqlite3_file *f, const void *bytes, int length, sqlite3_int64 offset) {
    if (length > 0 && offset >= 0)
        foresee_writes(FILE_OF(f)->foresee, (uint64_t)offset, bytes, (size_t)length);
    return REAL(f)->pMethods->xWrite(REAL(f), bytes, length, offset);
}

static int file_truncate(sqlite3_file *f, sqlite3_int64 size) {
    return REAL(f)->pMethods->xTruncate(REAL(f), size);
}

static int file_sync(sqlite3_file *f, int flags) {
    return REAL(f)->pMethods->xSync(REAL(f), flags);
}

static int file_size(sqlite3_file *f, sqlite3_int64 *size) {
    return REAL(f)->pMethods->xFileSize(REAL(f), size);
}

static int file_lock(sqlite3_file *f, int level) {
    return REAL(f)->pMethods->xLock(REAL(f), level);
}

static int file_unlock(sqlite3_file *f, int level) {
    int result = REAL(f)->pMethods->xUnlock(REAL(f), level);
    if (level == SQLITE_LOCK_NONE)
        foresee_rest(FILE_OF(f)->foresee);
    return result;
}

static int file_check_reserved_lock(sqlite3_file *f, int *reserved) {
    return REAL(f)->pMethods->xCheckReservedLock(REAL(f), reserved);
}

static int file_control(sqlite3_file *f, int operation, void *argument) {
    return REAL(f)->pMethods->xFileControl(REAL(f), operation, argument);
}

static int file_sector_size(sqlite3_file *f) {
    return REAL(f)->pMethods->xSectorSize(REAL(f));
}

static int file_characteristics(sqlite3_file *f) {
    return REAL(f)->pMethods->xDeviceCharacteristics(REAL(f));
}

static int file_shm_map(sqlite3_file *f, int region, int size, int extend, void volatile **at) {
    return REAL(f)->pMethods->xShmMap(REAL(f), region, size, extend, at);
}

/* The first of the locks of a write-ahead log that readers hold (walformat, section 2.2). */
#define WAL_FIRST_READ_LOCK 3

static int file_shm_lock(sqlite3_file *f, int offset, int count, int flags) {
    int result = REAL(f)->pMethods->xShmLock(REAL(f), offset, count, flags);
    if (flags == (SQLITE_SHM_UNLOCK | SQLITE_SHM_SHARED) && offset >= WAL_FIRST_READ_LOCK)
        foresee_rest(FILE_OF(f)->foresee);
    return result;
}

static void file_shm_barrier(sqlite3_file *f) {
    REAL(f)->pMethods->xShmBarrier(REAL(f));
}

static int file_shm_unmap(sqlite3_file *f, int remove) {
    return REAL(f)->pMethods->xShmUnmap(REAL(f), remove);
}

static int file_fetch(sqlite3_file *f, sqlite3_int64 offset, int length, void **at) {
    return REAL(f)->pMethods->xFetch(REAL(f), offset, length, at);
}

static int file_unfetch(sqlite3_file *f, sqlite3_int64 offset, void *at) {
    return REAL(f)->pMethods->xUnfetch(REAL(f), offset, at);
}

#define METHODS(version)                                                                                         \
    {                                                                                                            \
        .iVersion = (version), .xClose = file_close, .xRead = file_read, .xWrite = file_write,                   \
        .xTruncate = file_truncate, .xSync = file_sync, .xFileSize = file_size, .xLock = file_lock,              \
        .xUnlock = file_unlock, .xCheckReservedLock = file_check_reserved_lock, .xFileControl = file_control,    \
        .xSectorSize = file_sector_size, .xDeviceCharacteristics = file_characteristics,                         \
        .xShmMap = (version) >= 2 ? file_shm_map : NULL, .xShmLock = (version) >= 2 ? file_shm_lock : NULL,      \
        .xShmBarrier = (version) >= 2 ? file_shm_barrier : NULL,                                                 \
        .xShmUnmap = (version) >= 2 ? file_shm_unmap : NULL, .xFetch = (version) >= 3 ? file_fetch : NULL,       \
        .xUnfetch = (version) >= 3 ? file_unfetch : NULL                                                         \
    }

/* By the real file's version; with and without shared memory, by which SQLite tells whether there can be a log. */
static const sqlite3_io_methods methods[3] = {METHODS(1), METHODS(2), METHODS(3)};
static const sqlite3_io_methods methods_without_shm[2] = {
    {.iVersion = 2, .xClose = file_close, .xRead = file_read, .xWrite = file_write, .xTruncate = file_truncate,
     .xSync = file_sync, .xFileSize = file_size, .xLock = file_lock, .xUnlock = file_unlock,
     .xCheckReservedLock = file_check_reserved_lock, .xFileControl = file_control, .xSectorSize = file_sector_size,
     .xDeviceCharacteristics = file_characteristics},
    {.iVersion = 3, .xClose = file_close, .xRead = file_read, .xWrite = file_write, .xTruncate = file_truncate,
     .xSync = file_sync, .xFileSize = file_size, .xLock = file_lock, .xUnlock = file_unlock,
     .xCheckReservedLock = file_check_reserved_lock, .xFileControl = file_control, .xSectorSize = file_sector_size,
     .xDeviceCharacteristics = file_characteristics, .xFetch = file_fetch, .xUnfetch = file_unfetch}};

static const sqlite3_io_methods *methods_for(const sqlite3_io_methods *real) {
    int version = real->iVersion > 3 ? 3 : real->iVersion;
    if (version >= 2 && !real->xShmMap)
        return &methods_without_shm[version - 2];
    return &methods[version < 1 ? 0 : version - 1];
}

/* ---- Methods of the VFS ---- */

/*
 * The descriptor of a file that SQLite's own unix VFS has opened. It has no public name for it, but has kept it in the same place
 * since 3.7; that what stands there is a descriptor of this very file is checked.
 */
static int descriptor_of(const sqlite3_file *real, const char *path) {
    struct {
        const void *methods, *vfs, *inode;
        int descriptor;
    } beginning;
    struct stat opened, named;
    if (!path || below->szOsFile < (int)sizeof beginning || strncmp(below->zName, "unix", 4) != 0)
        return -1;
    memcpy(&beginning, real, sizeof beginning);
    if (beginning.vfs != below || beginning.descriptor < 0 || fstat(beginning.descriptor, &opened) != 0 ||
        stat(path, &named) != 0 || opened.st_dev != named.st_dev || opened.st_ino != named.st_ino)
        return -1;
    return beginning.descriptor;
}

static int vfs_open(sqlite3_vfs *vfs, sqlite3_filename path, sqlite3_file *f, int flags, int *flags_out) {
    struct file *file = FILE_OF(f);
    int result, descriptor;
    (void)vfs;
    /* Journals, logs and temporary files are the real VFS's own. */
    if (!(flags & SQLITE_OPEN_MAIN_DB))
        return below->xOpen(below, path, f, flags, flags_out);
    file->base.pMethods = NULL;
    file->real = (sqlite3_file *)&file[1];
    file->foresee = NULL;
    result = below->xOpen(below, path, file->real, flags, flags_out);
    if (!file->real->pMethods)
        return result;
    file->base.pMethods = methods_for(file->real->pMethods);
    if (result == SQLITE_OK) {
        descriptor = descriptor_of(file->real, path);
        if (descriptor >= 0)
            file->foresee = foresee_open(descriptor);
    }
    return result;
}

static int vfs_delete(sqlite3_vfs *vfs, const char *path, int sync) {
    (void)vfs;
    return below->xDelete(below, path, sync);
}

static int vfs_access(sqlite3_vfs *vfs, const char *path, int flags, int *result) {
    (void)vfs;
    return below->xAccess(below, path, flags, result);
}

static int vfs_full_pathname(sqlite3_vfs *vfs, const char *path, int size, char *full) {
    (void)vfs;
    return below->xFullPathname(below, path, size, full);
}

static void *vfs_dlopen(sqlite3_vfs *vfs, const char *path) {
    (void)vfs;
    return below->xDlOpen(below, path);
}

static void vfs_dlerror(sqlite3_vfs *vfs, int size, char *message) {
    (void)vfs;
    below->xDlError(below, size, message);
}

static void (*vfs_dlsym(sqlite3_vfs *vfs, void *library, const char *name))(void) {
    (void)vfs;
    return below->xDlSym(below, library, name);
}

static void vfs_dlclose(sqlite3_vfs *vfs, void *library) {
    (void)vfs;
    below->xDlClose(below, library);
}

static int vfs_randomness(sqlite3_vfs *vfs, int size, char *bytes) {
    (void)vfs;
    return below->xRandomness(below, size, bytes);
}

static int vfs_sleep(sqlite3_vfs *vfs, int microseconds) {
    (void)vfs;
    return below->xSleep(below, microseconds);
}

static int vfs_current_time(sqlite3_vfs *vfs, double *days) {
    (void)vfs;
    return below->xCurrentTime(below, days);
}

static int vfs_last_error(sqlite3_vfs *vfs, int size, char *message) {
    (void)vfs;
    return below->xGetLastError(below, size, message);
}

static int vfs_current_time_int64(sqlite3_vfs *vfs, sqlite3_int64 *milliseconds) {
    (void)vfs;
    return below->xCurrentTimeInt64(below, milliseconds);
}

static int vfs_set_system_call(sqlite3_vfs *vfs, const char *name, sqlite3_syscall_ptr call) {
    (void)vfs;
    return below->xSetSystemCall(below, name, call);
}

static sqlite3_syscall_ptr vfs_get_system_call(sqlite3_vfs *vfs, const char *name) {
    (void)vfs;
    return below->xGetSystemCall(below, name);
}

static const char *vfs_next_system_call(sqlite3_vfs *vfs, const char *name) {
    (void)vfs;
    return below->xNextSystemCall(below, name);
}

static void shim_fill(void) {
    shim.iVersion = below->iVersion > 3 ? 3 : below->iVersion;
    shim.szOsFile = (int)sizeof(struct file) + below->szOsFile;
    shim.mxPathname = below->mxPathname;
    shim.zName = "outrider";
    shim.pAppData = NULL;
    shim.xOpen = vfs_open;
    shim.xDelete = vfs_delete;
    shim.xAccess = vfs_access;
    shim.xFullPathname = vfs_full_pathname;
    shim.xDlOpen = below->xDlOpen ? vfs_dlopen : NULL;
    shim.xDlError = below->xDlError ? vfs_dlerror : NULL;
    shim.xDlSym = below->xDlSym ? vfs_dlsym : NULL;
    shim.xDlClose = below->xDlClose ? vfs_dlclose : NULL;
    shim.xRandomness = vfs_randomness;
    shim.xSleep = vfs_sleep;
    shim.xCurrentTime = vfs_current_time;
    shim.xGetLastError = below->xGetLastError ? vfs_last_error : NULL;
    if (shim.iVersion >= 2)
        shim.xCurrentTimeInt64 = below->xCurrentTimeInt64 ? vfs_current_time_int64 : NULL;
    if (shim.iVersion >= 3) {
        shim.xSetSystemCall = below->xSetSystemCall ? vfs_set_system_call : NULL;
        shim.xGetSystemCall = below->xGetSystemCall ? vfs_get_system_call : NULL;
        shim.xNextSystemCall = below->xNextSystemCall ? vfs_next_system_call : NULL;
    }
}

/* ---- Outrider's library ---- */

/* Whether what lies at a path, and what it leads to, belongs to root, to this user, or to the extension's owner, and nobody else may write to it who may not to the
 * extension: where that lies in a directory of all, anybody may have put something near it. */
static int is_kept(const char *path, const struct stat *own) {
    struct stat found[2];
    mode_t others = S_IWOTH | (own->st_mode & S_IWGRP ? 0 : S_IWGRP);
    int i;
    if (lstat(path, &found[0]) != 0 || stat(path, &found[1]) != 0)
        return 0;
    for (i = 0; i < 2; i++) {
        const struct stat *at = &found[i];
        if (at->st_uid != 0 && at->st_uid != geteuid() && at->st_uid != own->st_uid)
            return 0;
        if (!S_ISLNK(at->st_mode) && (at->st_mode & others || (at->st_mode & S_IWGRP && at->st_gid != own->st_gid)))
            return 0;
    }
    return 1;
}

/* Opens the library in `directory of this extension`/`name`, if it is as safe as the extension. */
static void *open_beside(const char *name) {
    Dl_info self;
    struct stat own;
    char path[4096];
    const char *slash;
    int length;
    if (!dladdr((void *)&below, &self) || !self.dli_fname || !(slash = strrchr(self.dli_fname, '/')))
        return NULL;
    length = snprintf(path, sizeof path - sizeof "/liboutrider.so", "%.*s%s", (int)(slash + 1 - self.dli_fname), self.dli_fname, name);
    if (length <= 0 || (size_t)length >= sizeof path - sizeof "/liboutrider.so" || stat(self.dli_fname, &own) != 0)
        return NULL;
    if (name[0] && !is_kept(path, &own))
        return NULL;
    strcat(path, name[0] ? "/liboutrider.so" : "liboutrider.so");
    return is_kept(path, &own) ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

/* Finds the library where the process has it already (preloaded, linked), else beside the extension (as installed, or in a build
 * tree), else where the loader finds it. */
static int find_library(struct foresee_library *library) {
    void *pull = dlsym(RTLD_DEFAULT, "outrider_pull"), *reading = dlsym(RTLD_DEFAULT, "outrider_reading"), *reads;
    void *stats = dlsym(RTLD_DEFAULT, "outrider_stats");
    Dl_info ours, theirs;
    if (!pull || !reading || !stats) {
        void *handle = open_beside("");
        if (!handle)
            handle = open_beside("../release");
        if (!handle)
            handle = dlopen("liboutrider.so.0", RTLD_NOW | RTLD_LOCAL);
        if (!handle)
            handle = dlopen("liboutrider.so", RTLD_NOW | RTLD_LOCAL);
        if (!handle)
            return 0;
        pull = dlsym(handle, "outrider_pull");
        reading = dlsym(handle, "outrider_reading");
        stats = dlsym(handle, "outrider_stats");
        if (!pull || !reading || !stats)
            return 0;
    }
    memcpy(&library->pull, &pull, sizeof pull);
    memcpy(&library->reading, &reading, sizeof reading);
    memcpy(&library->stats, &stats, sizeof stats);
    /* It sees SQLite's reads where pread is its own. */
    reads = dlsym(RTLD_DEFAULT, "pread64");
    library->sees_reads = reads && dladdr(reads, &theirs) && dladdr(pull, &ours) && theirs.dli_fbase == ours.dli_fbase;
    return 1;
}

/* ---- Entry ---- */

static void sql_counts(sqlite3_context *context, int count, sqlite3_value **values) {
    struct foresee_counts counts;
    char *text;
    (void)count;
    (void)values;
    foresee_counts(&counts);
    text = sqlite3_mprintf("{\"scans\":%lld,\"table_reads\":%lld,\"foreseen_reads\":%lld,\"declared\":%lld,"
                           "\"refused\":%lld}",
                           (sqlite3_int64)counts.scans, (sqlite3_int64)counts.table_reads,
                           (sqlite3_int64)counts.foreseen_reads, (sqlite3_int64)counts.declared,
                           (sqlite3_int64)counts.refused);
    if (text)
        sqlite3_result_text(context, text, -1, sqlite3_free);
    else
        sqlite3_result_error_nomem(context);
}

/* For every connection that is opened from now on. */
static int add_function(sqlite3 *db, char **message, const sqlite3_api_routines *api) {
    (void)message;
    (void)api;
    return sqlite3_create_function(db, "outrider_counts", 0, SQLITE_UTF8 | SQLITE_DIRECTONLY, NULL, sql_counts, NULL, NULL);
}

__attribute__((visibility("default"))) int sqlite3_outrider_init(sqlite3 *db, char **message, const sqlite3_api_routines *api) {
    static struct foresee_library library;
    int result;
    SQLITE_EXTENSION_INIT2(api);
    if (!sqlite3_vfs_find("outrider")) {
        below = sqlite3_vfs_find(NULL);
        if (!below) {
            *message = sqlite3_mprintf("outrider: SQLite has no VFS");
            return SQLITE_ERROR;
        }
        if (!find_library(&library)) {
            *message = sqlite3_mprintf("outrider: no liboutrider.so beside the extension or where the loader looks");
            return SQLITE_ERROR;
        }
        foresee_use(&library);
        shim_fill();
        result = sqlite3_vfs_register(&shim, 1);
        if (result == SQLITE_OK)
            result = sqlite3_auto_extension((void (*)(void))add_function);
        if (result != SQLITE_OK)
            return result;
    }
    result = add_function(db, message, api);
    /* Files opened through the shim need it to the end. */
    return result == SQLITE_OK ? SQLITE_OK_LOAD_PERMANENTLY : result;
}

/* The name that SQLite derives from the file's, outrider_sqlite.so, where it is given none. */
__attribute__((visibility("default"))) int sqlite3_outridersqlite_init(sqlite3 *db, char **message,
                                                                       const sqlite3_api_routines *api) {
    return sqlite3_outrider_init(db, message, api);
}
