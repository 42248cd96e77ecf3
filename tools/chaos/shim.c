/* Makes the calls of a process to the disk fail, for the campaign of faults: preloaded, and asleep until armed.

   chaos_arm(mode, prefix, countdown): calls on files below `prefix` count down; when zero is reached,
     1  the disk is full from then on: writes, and opening files to write, fail with ENOSPC
     2  one write fails with EIO            3  one fsync fails with EIO
     4  one read fails with EIO             5  every read returns at most half of what was asked for
     6  every write and fsync takes 10 milliseconds longer
   Modes 5 and 6 do not wait for the countdown. chaos_struck() returns whether any call was disturbed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static int mode, fired;
static long left;
static char prefix[PATH_MAX];

void chaos_arm(int new_mode, const char *where, long countdown) {
  strncpy(prefix, where, sizeof prefix - 1);
  left = countdown, fired = 0, mode = new_mode;
}
int chaos_struck(void) { return fired; }

static int below(int fd) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return strncmp(path, prefix, strlen(prefix)) == 0;
}
static int due(void) { return --left < 0; }
static void slowly(int fd) {
  struct timespec pause = {0, 10 * 1000 * 1000};
  if (mode != 6 || !below(fd)) return;
  fired = 1;
  nanosleep(&pause, NULL);
}

/* Returns the error of a call that writes, or 0. */
static int writing(int fd) {
  slowly(fd);
  if ((mode != 1 && mode != 2) || !below(fd)) return 0;
  if (!due() || (mode == 2 && fired)) return 0;
  fired = 1;
  return mode == 1 ? ENOSPC : EIO;
}
#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define FAIL(error) do { int e = (error); if (e) { errno = e; return -1; } } while (0)

ssize_t write(int fd, const void *data, size_t size) { REAL(write); FAIL(writing(fd)); return real(fd, data, size); }
ssize_t writev(int fd, const struct iovec *v, int n) { REAL(writev); FAIL(writing(fd)); return real(fd, v, n); }
ssize_t pwrite64(int fd, const void *d, size_t s, off64_t o) { REAL(pwrite64); FAIL(writing(fd)); return real(fd, d, s, o); }
int ftruncate64(int fd, off64_t size) { REAL(ftruncate64); FAIL(writing(fd)); return real(fd, size); }
int posix_fallocate64(int fd, off64_t a, off64_t b) {
  REAL(posix_fallocate64);
  int error = writing(fd);
  return error ? error : real(fd, a, b);
}
int fsync(int fd) {
  REAL(fsync);
  slowly(fd);
  if (mode == 3 && !fired && below(fd) && due()) { fired = 1; errno = EIO; return -1; }
  return real(fd);
}
static size_t reading(int fd, size_t size) {
  if (mode == 5 && size > 1 && below(fd)) { fired = 1; return size / 2; }
  if (mode == 4 && !fired && below(fd) && due()) { fired = 1; return 0; }
  return size;
}
ssize_t read(int fd, void *data, size_t size) {
  REAL(read);
  size_t allowed = size ? reading(fd, size) : 0;
  if (size && !allowed) { errno = EIO; return -1; }
  return real(fd, data, allowed);
}
ssize_t pread64(int fd, void *data, size_t size, off64_t at) {
  REAL(pread64);
  size_t allowed = size ? reading(fd, size) : 0;
  if (size && !allowed) { errno = EIO; return -1; }
  return real(fd, data, allowed, at);
}
/* A full disk refuses new files as well. */
static int opening(const char *path, int flags) {
  return mode == 1 && fired && (flags & O_CREAT) && strncmp(path, prefix, strlen(prefix)) == 0 ? ENOSPC : 0;
}
#define MODE(flags) mode_t bits = 0; if ((flags) & O_CREAT) { va_list v; va_start(v, flags); bits = va_arg(v, mode_t); va_end(v); }
int open64(const char *path, int flags, ...) { REAL(open64); MODE(flags) FAIL(opening(path, flags)); return real(path, flags, bits); }
int openat64(int at, const char *path, int flags, ...) { REAL(openat64); MODE(flags) FAIL(opening(path, flags)); return real(at, path, flags, bits); }
