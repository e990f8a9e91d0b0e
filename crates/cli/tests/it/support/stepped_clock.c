/* Preloaded into a process of the tests: shifts what one of its clocks says by as many seconds as a file says, from the moment
 * on that the file does. LOCKKEEPER_TEST_CLOCK: "wall" or "boot". LOCKKEEPER_TEST_STEP: the file. Nothing outside the process
 * sees it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long step_seconds(void) {
    char text[32] = {0};
    const char *path = getenv("LOCKKEEPER_TEST_STEP");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    return length > 0 ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    const char *stepped = getenv("LOCKKEEPER_TEST_CLOCK");
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && stepped) {
        int wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
        int boot = clock == CLOCK_BOOTTIME;
        if ((wall && !strcmp(stepped, "wall")) || (boot && !strcmp(stepped, "boot"))) time->tv_sec += step_seconds();
    }
    return result;
}
