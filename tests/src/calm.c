/* Preloaded into ranks of MLX where many cases run: MLX's threads ask for bytes without a pause while they wait for
 * some, and on a machine with fewer processors than such threads, those that have work wait for their turn. Here a
 * question without an answer waits for bytes for a fifth of a millisecond first. What goes over the wire stays the same. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

ssize_t recv(int fd, void *into, size_t count, int flags) {
    static ssize_t (*next)(int, void *, size_t, int);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "recv");
    ssize_t got = next(fd, into, count, flags);
    if (got < 0 && errno == EAGAIN) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        const struct timespec fifth = {.tv_nsec = 200000};
        ppoll(&wait, 1, &fifth, 0);
        got = next(fd, into, count, flags);
    }
    return got;
}
