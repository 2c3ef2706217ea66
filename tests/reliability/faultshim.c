/* Faults in, and a record of, the file operations of a process (Linux, glibc): an LD_PRELOAD library for the crash tests.
 *
 * Only what lies below `fi_path` counts, only while that is set, and only what can succeed: not the removal of a name that is not
 * there, nor the making of a folder that is. Operation number `fi_kill_at` is not done, the process is
 * killed; number `fi_torn_at` writes half of its bytes first; number `fi_err_at` (with `fi_err_sticky` all later ones too) fails
 * with `fi_err`. With `fi_reads`, opening for reading and listing a folder count as operations as well.
 * With `fi_record` >= 0 every successful change is appended to that descriptor: see `struct entry`, read by shim.py.
 *
 * Not seen: opens inside libc (fopen), stores into a shared mapping, io_uring, raw system calls. shim.py compares what was
 * recorded with what is on disk, so that a change that was not seen is an error and not a hole in a test.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

int fi_kill_at, fi_torn_at, fi_err_at, fi_err = EIO, fi_err_sticky, fi_reads, fi_record = -1, fi_sleep_at, fi_sleep_ms;
int fi_count;  /* operations so far */
int fi_fired;  /* how many of them failed */
char fi_path[PATH_MAX];
char fi_names[1 << 18];  /* "write PATH\n" for each operation */
static size_t names_length;
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

enum { CREATE = 1, WRITE, FSYNC, RENAME, UNLINK, MKDIR, RMDIR, LINK, TRUNCATE, SYMLINK, MARK };
enum { NEW = 1, EMPTIED = 2 };

struct entry {
  uint32_t kind, flags, length1, length2;
  uint64_t inode, offset, size;
};  /* followed by path 1, path 2 and, for WRITE, `size` bytes */

static int below(const char *path) {
  size_t n = strlen(fi_path);
  return n && !strncmp(path, fi_path, n) && (path[n] == '/' || path[n] == 0);
}

static int path_of(int fd, char *out) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, out, PATH_MAX - 1);
  out[n < 0 ? 0 : n] = 0;
  return n >= 0 && below(out);
}

/* The absolute path of `path` as seen from the folder `dir`; true if it counts. */
static int resolve(int dir, const char *path, char *out) {
  char base[PATH_MAX];
  out[0] = 0;
  if (!fi_path[0] || !path) return 0;
  if (path[0] == '/') {
    snprintf(out, PATH_MAX, "%s", path);
  } else {
    if (dir == AT_FDCWD) {
      if (!getcwd(base, sizeof base)) return 0;
    } else {
      path_of(dir, base);
    }
    if (snprintf(out, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) return 0;
  }
  return below(out);
}

/* Counts an operation and does to it what was asked for: -1 if it is to fail. */
static int gate(const char *what, const char *path) {
  int n = ++fi_count;
  if (names_length + PATH_MAX + 32 < sizeof fi_names)
    names_length += snprintf(fi_names + names_length, PATH_MAX + 32, "%s %s\n", what, path);
  if (n == fi_sleep_at) nanosleep(&(struct timespec){fi_sleep_ms / 1000, fi_sleep_ms % 1000 * 1000000L}, 0);
  if (n == fi_kill_at) kill(getpid(), SIGKILL);
  if (fi_err_at && (n == fi_err_at || (fi_err_sticky && n > fi_err_at))) {
    fi_fired++;
    errno = fi_err;
    return -1;
  }
  return 0;
}

static void emit(const void *data, size_t size) {
  for (const char *p = data; size;) {
    long n = syscall(SYS_write, fi_record, p, size);
    if (n <= 0) abort();
    p += n;
    size -= n;
  }
}

static void record(int kind, int flags, const char *one, const char *two, uint64_t inode, off_t offset, size_t size, const void *data) {
  if (fi_record < 0) return;
  int error = errno;
  struct entry e = {kind, flags, one ? strlen(one) : 0, two ? strlen(two) : 0, inode, offset, size};
  emit(&e, sizeof e);
  emit(one, e.length1);
  emit(two, e.length2);
  if (data) emit(data, size);
  errno = error;
}

static uint64_t inode_of(int fd) {
  struct stat s;
  return fstat(fd, &s) ? 0 : s.st_ino;
}

static uint64_t inode_at(const char *path) {
  struct stat s;
  return lstat(path, &s) ? 0 : s.st_ino;
}

/* Called by the test itself: what it knows to be acknowledged by now. */
void fi_mark(uint64_t number) {
  pthread_mutex_lock(&lock);
  record(MARK, 0, 0, 0, number, 0, 0, 0);
  pthread_mutex_unlock(&lock);
}

void fi_reset(void) {
  fi_kill_at = fi_torn_at = fi_err_at = fi_err_sticky = fi_count = fi_fired = fi_sleep_at = 0;
  names_length = 0;
  fi_names[0] = 0;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define ENTER pthread_mutex_lock(&lock)
#define LEAVE(value) do { int e_ = errno; pthread_mutex_unlock(&lock); errno = e_; return value; } while (0)

/* --- Data --- */

static void wrote(int fd, const void *data, size_t size, off_t offset) {
  if (fi_record >= 0 && size) record(WRITE, 0, 0, 0, inode_of(fd), offset < 0 ? lseek(fd, 0, SEEK_CUR) - (off_t)size : offset, size, data);
}

ssize_t write(int fd, const void *data, size_t size) {
  REAL(write);
  char path[PATH_MAX];
  if (!fi_path[0] || !path_of(fd, path)) return real(fd, data, size);
  ENTER;
  if (gate("write", path)) LEAVE(-1);
  if (fi_torn_at == fi_count) { real(fd, data, size / 2); kill(getpid(), SIGKILL); }
  ssize_t n = real(fd, data, size);
  if (n > 0) wrote(fd, data, n, -1);
  LEAVE(n);
}

#define PWRITE(name, type) \
  ssize_t name(int fd, const void *data, size_t size, type offset) { \
    REAL(name); \
    char path[PATH_MAX]; \
    if (!fi_path[0] || !path_of(fd, path)) return real(fd, data, size, offset); \
    ENTER; \
    if (gate("write", path)) LEAVE(-1); \
    if (fi_torn_at == fi_count) { real(fd, data, size / 2, offset); kill(getpid(), SIGKILL); } \
    ssize_t n = real(fd, data, size, offset); \
    if (n > 0) wrote(fd, data, n, offset); \
    LEAVE(n); \
  }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t writev(int fd, const struct iovec *vector, int count) {
  REAL(writev);
  char path[PATH_MAX];
  if (!fi_path[0] || !path_of(fd, path)) return real(fd, vector, count);
  ENTER;
  if (gate("write", path)) LEAVE(-1);
  if (fi_torn_at == fi_count) { real(fd, vector, (count + 1) / 2); kill(getpid(), SIGKILL); }
  ssize_t n = real(fd, vector, count);
  if (n > 0 && fi_record >= 0) {
    char *all = malloc(n), *p = all;
    for (size_t left = n; left; vector++) {
      size_t part = vector->iov_len < left ? vector->iov_len : left;
      memcpy(p, vector->iov_base, part);
      p += part;
      left -= part;
    }
    wrote(fd, all, n, -1);
    free(all);
  }
  LEAVE(n);
}

/* A copy inside the kernel: what it wrote is read back for the record. */
static void copied(int fd, const char *path, ssize_t size, off_t offset) {
  if (fi_record < 0 || size <= 0) return;
  int in = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY);
  char *all = malloc(size);
  off_t start = offset < 0 ? lseek(fd, 0, SEEK_CUR) - size : offset;
  if (in < 0 || pread(in, all, size, start) != size) abort();
  wrote(fd, all, size, start);
  close(in);
  free(all);
}

#define SENDFILE(name, type) \
  ssize_t name(int out, int in, type *offset, size_t size) { \
    REAL(name); \
    char path[PATH_MAX]; \
    if (!fi_path[0] || !path_of(out, path)) return real(out, in, offset, size); \
    ENTER; \
    if (gate("write", path)) LEAVE(-1); \
    ssize_t n = real(out, in, offset, size); \
    copied(out, path, n, -1); \
    LEAVE(n); \
  }
SENDFILE(sendfile, off_t)
SENDFILE(sendfile64, off64_t)

ssize_t copy_file_range(int in, off64_t *offset_in, int out, off64_t *offset_out, size_t size, unsigned flags) {
  REAL(copy_file_range);
  char path[PATH_MAX];
  if (!fi_path[0] || !path_of(out, path)) return real(in, offset_in, out, offset_out, size, flags);
  ENTER;
  if (gate("write", path)) LEAVE(-1);
  off_t start = offset_out ? *offset_out : -1;
  ssize_t n = real(in, offset_in, out, offset_out, size, flags);
  copied(out, path, n, start);
  LEAVE(n);
}

#define TRUNCATE_FD(name, type) \
  int name(int fd, type size) { \
    REAL(name); \
    char path[PATH_MAX]; \
    if (!fi_path[0] || !path_of(fd, path)) return real(fd, size); \
    ENTER; \
    if (gate("truncate", path)) LEAVE(-1); \
    int r = real(fd, size); \
    if (!r) record(TRUNCATE, 0, 0, 0, inode_of(fd), 0, size, 0); \
    LEAVE(r); \
  }
TRUNCATE_FD(ftruncate, off_t)
TRUNCATE_FD(ftruncate64, off64_t)

#define SYNC(name) \
  int name(int fd) { \
    REAL(name); \
    char path[PATH_MAX]; \
    if (!fi_path[0] || !path_of(fd, path)) return real(fd); \
    ENTER; \
    if (gate("fsync", path)) LEAVE(-1); \
    int r = real(fd); \
    if (!r) record(FSYNC, 0, path, 0, inode_of(fd), 0, 0, 0); \
    LEAVE(r); \
  }
SYNC(fsync)
SYNC(fdatasync)

/* --- Names --- */

static int opened(int fd, const char *path, int flags, int is_new) {
  struct stat s;
  if (fd >= 0 && !fstat(fd, &s) && S_ISREG(s.st_mode) && (is_new || (flags & O_TRUNC)))
    record(CREATE, (is_new ? NEW : 0) | (flags & O_TRUNC ? EMPTIED : 0), path, 0, s.st_ino, 0, 0, 0);
  return fd;
}

#define OPEN_BODY(dir, call) \
  mode_t mode = 0; \
  va_list ap; \
  va_start(ap, flags); \
  if (flags & (O_CREAT | O_TMPFILE)) mode = va_arg(ap, mode_t); \
  va_end(ap); \
  char full[PATH_MAX]; \
  int changes = flags & (O_CREAT | O_TRUNC); \
  if ((!changes && !fi_reads) || !resolve(dir, path, full) || (!(flags & O_CREAT) && !inode_at(full))) return call; \
  ENTER; \
  if (gate(changes ? "open" : "read", full)) LEAVE(-1); \
  int is_new = (flags & O_CREAT) && !inode_at(full); \
  int fd = call; \
  if (changes) opened(fd, full, flags, is_new); \
  LEAVE(fd);
#define OPEN(name) int name(const char *path, int flags, ...) { REAL(name); OPEN_BODY(AT_FDCWD, real(path, flags, mode)) }
#define OPENAT(name) int name(int dir, const char *path, int flags, ...) { REAL(name); OPEN_BODY(dir, real(dir, path, flags, mode)) }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

DIR *opendir(const char *path) {
  REAL(opendir);
  char full[PATH_MAX];
  if (!fi_reads || !resolve(AT_FDCWD, path, full) || !inode_at(full)) return real(path);
  ENTER;
  if (gate("list", full)) LEAVE(NULL);
  DIR *r = real(path);
  LEAVE(r);
}

#define TWO_NAMES(dir1, path1, dir2, path2, what, call, kind, flags) \
  char one[PATH_MAX], two[PATH_MAX]; \
  int counts = resolve(dir1, path1, one); \
  if (!(resolve(dir2, path2, two) || counts) || !inode_at(one)) return call; \
  ENTER; \
  if (gate(what, two)) LEAVE(-1); \
  uint64_t inode = inode_at(one); \
  int r = call; \
  if (!r) record(kind, flags, one, two, inode, 0, 0, 0); \
  LEAVE(r);

int rename(const char *a, const char *b) {
  REAL(rename);
  TWO_NAMES(AT_FDCWD, a, AT_FDCWD, b, "rename", real(a, b), RENAME, 0)
}
int renameat(int d, const char *a, int e, const char *b) {
  REAL(renameat);
  TWO_NAMES(d, a, e, b, "rename", real(d, a, e, b), RENAME, 0)
}
int renameat2(int d, const char *a, int e, const char *b, unsigned f) {
  REAL(renameat2);
  TWO_NAMES(d, a, e, b, "rename", real(d, a, e, b, f), RENAME, f)
}
int link(const char *a, const char *b) {
  REAL(link);
  TWO_NAMES(AT_FDCWD, a, AT_FDCWD, b, "link", real(a, b), LINK, 0)
}
int linkat(int d, const char *a, int e, const char *b, int f) {
  REAL(linkat);
  TWO_NAMES(d, a, e, b, "link", real(d, a, e, b, f), LINK, 0)
}

#define ONE_NAME(dir, path, what, call, kind, inode, is_there) \
  char full[PATH_MAX]; \
  if (!resolve(dir, path, full) || !!inode_at(full) != (is_there)) return call; \
  ENTER; \
  if (gate(what, full)) LEAVE(-1); \
  int r = call; \
  if (!r) record(kind, 0, full, 0, inode, 0, 0, 0); \
  LEAVE(r);

int symlink(const char *a, const char *b) {
  REAL(symlink);
  ONE_NAME(AT_FDCWD, b, "symlink", real(a, b), SYMLINK, inode_at(full), 0)
}
int unlink(const char *a) {
  REAL(unlink);
  ONE_NAME(AT_FDCWD, a, "unlink", real(a), UNLINK, 0, 1)
}
int unlinkat(int d, const char *a, int f) {
  REAL(unlinkat);
  ONE_NAME(d, a, f & AT_REMOVEDIR ? "rmdir" : "unlink", real(d, a, f), f & AT_REMOVEDIR ? RMDIR : UNLINK, 0, 1)
}
int rmdir(const char *a) {
  REAL(rmdir);
  ONE_NAME(AT_FDCWD, a, "rmdir", real(a), RMDIR, 0, 1)
}
int mkdir(const char *a, mode_t m) {
  REAL(mkdir);
  ONE_NAME(AT_FDCWD, a, "mkdir", real(a, m), MKDIR, inode_at(full), 0)
}
int mkdirat(int d, const char *a, mode_t m) {
  REAL(mkdirat);
  ONE_NAME(d, a, "mkdir", real(d, a, m), MKDIR, inode_at(full), 0)
}
