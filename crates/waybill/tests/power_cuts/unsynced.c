/*
 * Records what a process does to the files in a directory before it syncs them, so that a test can take that back once
 * the process was killed: what a power cut would leave. Preloaded into the process (LD_PRELOAD).
 *
 * UNSYNCED_ROOT  the directory, without symbolic links in its path
 * UNSYNCED_LOG   the file for the records
 * UNSYNCED_HOLD  a directory on the same file system, for links to files that may have to be restored
 * UNSYNCED_BOOT  a file with the boot id that the process sees
 *
 * A record is, in the machine's byte order: kind (1 byte), file, a, b (8 bytes each), length (4 bytes), bytes. A file is
 * identified by its inode and its time of creation, because inodes are used again.
 *
 *   N  b bytes at offset a were written. Bytes: the length of the file before (8 bytes).
 *   T  a file of length b was cut to length a, or extended.
 *   W  the bytes at offset a before the last N or T.
 *   S  a file was synced: whatever the first a records say about it is durable.
 *   D  a directory was synced. Bytes: its path below the root, then name, kind (f or d) and file of each entry, all as
 *      texts that end with a zero byte.
 *
 * At the start of the process, every file and directory is taken as synced.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define PIECE 65536

/* What is known of an open file or directory. */
struct file {
    uint64_t id, size;
    mode_t mode;
};

static char root[1024], hold[1024];
static size_t root_length;
static int log_fd = -1;
static uint64_t records;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void die(const char *what) {
    fprintf(stderr, "unsynced: %s: %s\n", what, strerror(errno));
    _exit(99);
}

static void put(const void *bytes, size_t length) {
    const char *at = bytes;
    while (length > 0) {
        long written = syscall(SYS_write, log_fd, at, length);
        if (written < 0) die("cannot write a record");
        at += written;
        length -= (size_t)written;
    }
}

/* Looks at a file, which is open as `fd` or has a path below it. Returns 0 on success. */
static int look(int fd, const char *path, struct file *file) {
    struct statx found;
    int flags = AT_SYMLINK_NOFOLLOW | (*path ? 0 : AT_EMPTY_PATH);
    unsigned wanted = STATX_INO | STATX_BTIME | STATX_SIZE | STATX_TYPE;
    if (statx(fd, path, flags, wanted, &found) != 0) return -1;
    uint64_t created = (uint64_t)found.stx_btime.tv_sec * 1000000000 + found.stx_btime.tv_nsec;
    file->id = found.stx_ino * 0x9e3779b97f4a7c15 ^ created;
    file->size = found.stx_size;
    file->mode = found.stx_mode;
    return 0;
}

/* The caller has the lock. One write per record: a kill leaves no record without its head. */
static void record(char kind, uint64_t file, uint64_t a, uint64_t b, const void *bytes, uint32_t length) {
    static char buffer[29 + PIECE];
    char *at = buffer;
    *at++ = kind;
    memcpy(at, &file, 8);
    memcpy(at + 8, &a, 8);
    memcpy(at + 16, &b, 8);
    memcpy(at + 24, &length, 4);
    if (length <= PIECE) {
        memcpy(at + 28, bytes ? bytes : "", bytes ? length : 0);
        put(buffer, 29 + length);
    } else {
        put(buffer, 29);
        put(bytes, length);
    }
    records++;
}

/* Whether a path is the root or lies below it. */
static int is_below(const char *path) {
    return strncmp(path, root, root_length) == 0 && (path[root_length] == '/' || path[root_length] == 0);
}

static int path_of(int fd, char path[PATH_MAX]) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_below(path);
}

/* Whether an open file is a regular one below the root. */
static int is_tracked(int fd, struct file *file) {
    char path[PATH_MAX];
    return log_fd >= 0 && fd != log_fd && look(fd, "", file) == 0 && S_ISREG(file->mode) && path_of(fd, path);
}

/* Records the bytes of a file from `from` to `to`, without pieces of zeros if `sparse`. */
static void old_bytes(const char *name, const struct file *file, uint64_t from, uint64_t to, int sparse) {
    static char piece[PIECE];
    static const char zeros[PIECE];
    int fd = (int)syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) die("cannot read what is replaced");
    while (from < to) {
        size_t wanted = to - from < PIECE ? (size_t)(to - from) : PIECE;
        ssize_t length = pread(fd, piece, wanted, (off_t)from);
        if (length <= 0) break;
        if (!sparse || memcmp(piece, zeros, (size_t)length) != 0)
            record('W', file->id, from, 0, piece, (uint32_t)length);
        from += (uint64_t)length;
    }
    syscall(SYS_close, fd);
}

static void will_write(int fd, const struct file *file, uint64_t offset, uint64_t length) {
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    uint64_t size = file->size, end = offset + length;
    record('N', file->id, offset, length, &size, sizeof size);
    old_bytes(name, file, offset, end < size ? end : size, 0);
}

static void will_cut(const char *name, const struct file *file, uint64_t length) {
    record('T', file->id, length, file->size, NULL, 0);
    if (length < file->size) old_bytes(name, file, length, file->size, 1);
}

static uint64_t offset_of(int fd, const struct file *file) {
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && flags & O_APPEND) return file->size;
    off_t at = lseek(fd, 0, SEEK_CUR);
    return at < 0 ? 0 : (uint64_t)at;
}

static uint64_t length_of(const struct iovec *pieces, int count) {
    uint64_t length = 0;
    for (int at = 0; at < count; at++) length += pieces[at].iov_len;
    return length;
}

/* Performs a change of a file. `before` records what it replaces. */
#define CHANGE(fd, before, change)                \
    do {                                          \
        struct file file;                         \
        if (!is_tracked(fd, &file)) return change; \
        pthread_mutex_lock(&lock);                \
        look(fd, "", &file);                      \
        before;                                   \
        int64_t done = change;                    \
        int error = errno;                        \
        pthread_mutex_unlock(&lock);              \
        errno = error;                            \
        return done;                              \
    } while (0)

ssize_t write(int fd, const void *bytes, size_t length) {
    CHANGE(fd, will_write(fd, &file, offset_of(fd, &file), length), syscall(SYS_write, fd, bytes, length));
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset) {
    CHANGE(fd, will_write(fd, &file, (uint64_t)offset, length), syscall(SYS_pwrite64, fd, bytes, length, offset));
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) {
    return pwrite64(fd, bytes, length, offset);
}

ssize_t writev(int fd, const struct iovec *pieces, int count) {
    CHANGE(fd, will_write(fd, &file, offset_of(fd, &file), length_of(pieces, count)),
           syscall(SYS_writev, fd, pieces, count));
}

int ftruncate64(int fd, off64_t length) {
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    CHANGE(fd, will_cut(name, &file, (uint64_t)length), (int)syscall(SYS_ftruncate, fd, length));
}

int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

/* Copies within the kernel are refused, so that their callers read and write. */
ssize_t copy_file_range(int in, off64_t *in_at, int out, off64_t *out_at, size_t length, unsigned flags) {
    struct file file;
    if (!is_tracked(out, &file)) return syscall(SYS_copy_file_range, in, in_at, out, out_at, length, flags);
    errno = EXDEV;
    return -1;
}

ssize_t sendfile64(int out, int in, off64_t *at, size_t length) {
    struct file file;
    if (!is_tracked(out, &file)) return syscall(SYS_sendfile, out, in, at, length);
    errno = EINVAL;
    return -1;
}

ssize_t sendfile(int out, int in, off_t *at, size_t length) { return sendfile64(out, in, at, length); }

/* Notes a directory's entries in a record that is not written yet. Returns its length. */
static size_t entries_of(const char *path, char **text) {
    size_t capacity = PIECE, length = 0;
    *text = malloc(capacity);
    const char *below = path + root_length + (path[root_length] == '/');
    length += (size_t)snprintf(*text, capacity, "%s", below) + 1;
    DIR *directory = opendir(path);
    if (!directory) die("cannot list a directory");
    struct dirent *entry;
    while ((entry = readdir(directory))) {
        char of_entry[PATH_MAX], held[PATH_MAX];
        struct file file;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        snprintf(of_entry, sizeof of_entry, "%s/%s", path, entry->d_name);
        if (look(AT_FDCWD, of_entry, &file) != 0) continue;
        if (!S_ISREG(file.mode) && !S_ISDIR(file.mode)) continue;
        if (S_ISREG(file.mode)) {
            snprintf(held, sizeof held, "%s/%llu", hold, (unsigned long long)file.id);
            if (link(of_entry, held) != 0 && errno != EEXIST && errno != ENOENT) die("cannot hold a file");
        }
        if (length + strlen(entry->d_name) + 64 > capacity) *text = realloc(*text, capacity *= 2);
        length += (size_t)sprintf(*text + length, "%s", entry->d_name) + 1;
        length += (size_t)sprintf(*text + length, "%c", S_ISDIR(file.mode) ? 'd' : 'f') + 1;
        length += (size_t)sprintf(*text + length, "%llu", (unsigned long long)file.id) + 1;
    }
    closedir(directory);
    return length;
}

static int synced(int fd, long call) {
    struct file file = {0};
    char path[PATH_MAX], *text = NULL;
    size_t length = 0;
    int is_known = log_fd >= 0 && fd != log_fd && look(fd, "", &file) == 0 && path_of(fd, path);
    int is_directory = is_known && S_ISDIR(file.mode);
    pthread_mutex_lock(&lock);
    uint64_t before = records;
    if (is_directory) length = entries_of(path, &text);
    pthread_mutex_unlock(&lock);
    int done = (int)syscall(call, fd), error = errno;
    if (done == 0 && is_known) {
        pthread_mutex_lock(&lock);
        if (is_directory) record('D', file.id, before, 0, text, (uint32_t)length);
        if (S_ISREG(file.mode)) record('S', file.id, before, 0, NULL, 0);
        pthread_mutex_unlock(&lock);
    }
    free(text);
    errno = error;
    return done;
}

int fsync(int fd) { return synced(fd, SYS_fsync); }

int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

int open64(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    struct file file;
    int old = -1, result;
    if (log_fd >= 0 && !strcmp(path, "/proc/sys/kernel/random/boot_id")) path = getenv("UNSYNCED_BOOT");
    if (log_fd >= 0 && flags & O_TRUNC) old = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (old < 0) return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (is_tracked(old, &file) && file.size > 0) {
        pthread_mutex_lock(&lock);
        look(old, "", &file);
        will_cut(path, &file, 0);
        result = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
        pthread_mutex_unlock(&lock);
    } else {
        result = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    }
    int error = errno;
    syscall(SYS_close, old);
    errno = error;
    return result;
}

int open(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return open64(path, flags, mode);
}

static void note_directory(const char *path, uint64_t file) {
    char *text, below[PATH_MAX];
    size_t length = entries_of(path, &text);
    record('D', file, records, 0, text, (uint32_t)length);
    free(text);
    DIR *directory = opendir(path);
    struct dirent *entry;
    while (directory && (entry = readdir(directory))) {
        struct file of_entry;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        snprintf(below, sizeof below, "%s/%s", path, entry->d_name);
        if (look(AT_FDCWD, below, &of_entry) == 0 && S_ISDIR(of_entry.mode)) note_directory(below, of_entry.id);
    }
    if (directory) closedir(directory);
}

__attribute__((constructor)) static void begin(void) {
    const char *of_root = getenv("UNSYNCED_ROOT"), *of_log = getenv("UNSYNCED_LOG"), *of_hold = getenv("UNSYNCED_HOLD");
    struct file file;
    if (!of_root || !of_log || !of_hold || !getenv("UNSYNCED_BOOT")) return;
    root_length = strlen(of_root);
    if (root_length >= sizeof root) return;
    memcpy(root, of_root, root_length + 1);
    snprintf(hold, sizeof hold, "%s", of_hold);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, of_log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) die("cannot open the log");
    /* Out of the way of a program that closes low descriptors. */
    log_fd = fcntl(fd, F_DUPFD_CLOEXEC, 900);
    if (log_fd < 0) log_fd = fd;
    else syscall(SYS_close, fd);
    pthread_mutex_lock(&lock);
    if (look(AT_FDCWD, root, &file) == 0) note_directory(root, file.id);
    pthread_mutex_unlock(&lock);
}
