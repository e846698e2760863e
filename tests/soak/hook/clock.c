/* Adds the seconds in the file HACPO_SOAK_CLOCK, an int64, to every clock of a process that shows the time of day.
   Loaded with LD_PRELOAD, so that time.time, datetime.now and code in C agree, as after a clock that was set. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *shift_s;

__attribute__((constructor)) static void open_shift(void)
{
    const char *path = getenv("HACPO_SOAK_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *memory = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (memory != MAP_FAILED)
        shift_s = memory;
}

int clock_gettime(clockid_t clock, struct timespec *time_of_day)
{
    static int (*true_clock_gettime)(clockid_t, struct timespec *);
    if (!true_clock_gettime)
        true_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = true_clock_gettime(clock, time_of_day);
    if (!failed && shift_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        time_of_day->tv_sec += *shift_s;
    return failed;
}

int gettimeofday(struct timeval *restrict time_of_day, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    time_of_day->tv_sec = now.tv_sec;
    time_of_day->tv_usec = now.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *seconds)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (seconds)
        *seconds = now.tv_sec;
    return now.tv_sec;
}
