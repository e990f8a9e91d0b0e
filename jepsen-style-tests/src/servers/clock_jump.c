/* Preloaded into a redis-server: its wall clock is off by the seconds that the file $CLOCK_JUMP_FILE says. Redis reads
   its wall clock by gettimeofday alone, and lets keys expire by it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

static long jump(void) {
    static int file = -2;
    char text[24] = {0};
    if (file == -2) {
        const char *path = getenv("CLOCK_JUMP_FILE");
        file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    }
    return file >= 0 && pread(file, text, sizeof text - 1, 0) > 0 ? atol(text) : 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int failed = syscall(SYS_gettimeofday, now, zone);
    if (!failed && now) now->tv_sec += jump();
    return failed;
}
